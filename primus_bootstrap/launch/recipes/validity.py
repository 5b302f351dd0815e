"""Whether a recipe is consistent: what the backends would refuse, found without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.detect.gpus import catalogue as gpu_catalogue
from primus_bootstrap.launch.recipes.recipe import DDP, DISTRIBUTED_OPTIMIZER, FSDP, FULL, NONE, SELECTIVE
from primus_bootstrap.launch.recipes.stages import layers_of_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

PRECISIONS = ("bf16", "fp8", "mxfp8")


def problems(recipe: Recipe, shape: ModelShape) -> tuple[str, ...]:
    """Return every contradiction of a recipe."""
    sizes = tuple(_sizes(recipe))
    return sizes or (*_layout(recipe, shape), *_pipeline(recipe, shape), *_batch(recipe, shape), *_precision(recipe))


def model_ranks(recipe: Recipe) -> int:
    """Return how many GPUs one copy of the model takes before data parallelism: a number of GPUs must be a multiple of it."""
    layout = recipe.layout
    return layout.tensor * layout.pipeline * layout.context


def expert_tensor(recipe: Recipe) -> int:
    """Return over how many ranks an expert's matrices are split; Megatron splits them like the others unless the recipe says otherwise."""
    default = recipe.layout.tensor if recipe.backend == "megatron" else 1
    return int(recipe.keys.get("expert_tensor_parallel_size") or default)


def _sizes(recipe: Recipe) -> Iterator[str]:
    layout, batch = recipe.layout, recipe.batch
    sizes = {name: getattr(layout, name) for name in ("gpus", "tensor", "pipeline", "virtual_pipeline", "context", "expert")}
    sizes.update({"length": batch.length, "micro": batch.micro, "all": batch.all})
    for name, value in sizes.items():
        if value < 1:
            yield f"{name} is {value}; it must be 1 or more"
    if layout.data not in (DDP, DISTRIBUTED_OPTIMIZER, FSDP):
        yield f"data is {layout.data}; it must be {DDP}, {DISTRIBUTED_OPTIMIZER} or {FSDP}"
    if recipe.recompute.kind not in (NONE, SELECTIVE, FULL):
        yield f"recompute is {recipe.recompute.kind}; it must be {NONE}, {SELECTIVE} or {FULL}"
    if recipe.precision not in PRECISIONS:
        yield f"precision is {recipe.precision}; it must be one of {', '.join(PRECISIONS)}"


def _layout(recipe: Recipe, shape: ModelShape) -> Iterator[str]:
    layout = recipe.layout
    if layout.gpus % model_ranks(recipe):
        yield f"{layout.gpus} GPUs are no multiple of tensor x pipeline x context = {model_ranks(recipe)}"
    for name, count in (("heads", shape.heads), ("ffn_width", shape.ffn_width)):
        if count % layout.tensor:
            yield f"tensor {layout.tensor} does not divide {name} ({count})"
    if shape.kv_heads % layout.tensor and layout.tensor % shape.kv_heads:
        yield f"tensor {layout.tensor} and kv_heads ({shape.kv_heads}) do not divide each other"
    if layout.data == FSDP and layout.shards and (layout.gpus % layout.shards or layout.shards > layout.gpus):
        yield f"{layout.gpus} GPUs are no multiple of {layout.shards} shards"
    yield from _experts(recipe, shape)


def _experts(recipe: Recipe, shape: ModelShape) -> Iterator[str]:
    layout = recipe.layout
    if shape.experts is None:
        if layout.expert > 1:
            yield f"expert is {layout.expert}, and the model has no experts"
        return
    if shape.experts.count % layout.expert:
        yield f"expert {layout.expert} does not divide {shape.experts.count} experts"
    ranks = layout.expert * layout.pipeline * expert_tensor(recipe)
    if layout.gpus % ranks:
        yield f"{layout.gpus} GPUs are no multiple of expert x pipeline x expert_tensor_parallel_size = {ranks}"


def _pipeline(recipe: Recipe, shape: ModelShape) -> Iterator[str]:
    layout = recipe.layout
    if layout.virtual_pipeline > 1 and layout.pipeline == 1:
        yield "virtual_pipeline needs pipeline > 1"
    if layout.pipeline > 1 and layout.data == FSDP and recipe.backend == "megatron":
        yield "Megatron does not combine fsdp with pipeline > 1"
    try:
        stages = layers_of_stage(recipe, shape)
    except ValueError as error:
        yield str(error)
        return
    if min(stages) < 1:
        yield f"a pipeline stage has no layer: {stages}"
    if recipe.recompute.layers > max(stages):
        yield f"recompute.layers is {recipe.recompute.layers}, and no stage has more than {max(stages)} layers"
    if recipe.recompute.layers and recipe.recompute.kind != FULL:
        yield f"recompute.layers needs kind: {FULL}"


def _batch(recipe: Recipe, shape: ModelShape) -> Iterator[str]:
    layout, batch = recipe.layout, recipe.batch
    step = batch.micro * max(1, layout.replicas)
    if batch.all % step:
        yield f"the batch of {batch.all} is no multiple of micro x data-parallel size = {step}"
    elif layout.virtual_pipeline > 1 and recipe.micro_batches % layout.pipeline:
        yield f"{recipe.micro_batches} micro batches are no multiple of pipeline {layout.pipeline}, which virtual_pipeline needs"
    if shape.context and batch.length > shape.context:
        yield f"length {batch.length} exceeds the model's context {shape.context}"
    if layout.context > 1 and batch.length % (2 * layout.context):
        yield f"length {batch.length} is no multiple of 2 x context = {2 * layout.context}"


def _precision(recipe: Recipe) -> Iterator[str]:
    facts = gpu_catalogue()["models"].get(recipe.gpu)
    if facts is None:
        yield f"unknown GPU {recipe.gpu}: data/gpus.yml does not have it"
    elif recipe.precision == "fp8" and facts.get("fp8") == "none":
        yield f"{recipe.gpu} has no FP8"
    elif recipe.precision.startswith("mx") and not facts.get("mx", True):
        yield f"{recipe.gpu} has no {recipe.precision.upper()}"
