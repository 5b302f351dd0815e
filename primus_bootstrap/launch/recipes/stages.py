"""Which layers a pipeline stage has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

# Megatron's settings for layers that a pipeline does not divide evenly: megatron/core/transformer/transformer_config.py of 0.19.2.
_LAYOUT, _FIRST, _LAST = "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
_COUNTED_AS_LAYERS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
# TorchTitan counts embedding and output as a layer each, unless these settings say otherwise: torchtitan/config/job_config.py of 0.2.2.
_TITAN = ("parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_last_stage_less_layers")
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|(\w)\*(\d+)")


def stage_layers(recipe: Recipe, shape: ModelShape) -> tuple[int, ...]:
    """Return the number of layers of each chunk, in the order of the model: pipeline x virtual_pipeline numbers.

    Stage n has the chunks n, n + pipeline, n + 2 pipeline and so on.

    Raises:
        ValueError: The layers cannot be divided; the text says why.
    """
    layout = recipe.layout
    chunks = layout.pipeline * layout.virtual_pipeline
    if recipe.keys.get(_LAYOUT):
        found = _of_layout(str(recipe.keys[_LAYOUT]))
    elif recipe.keys.get(_FIRST) or recipe.keys.get(_LAST):
        found = _of_ends(recipe, shape.layers)
    else:
        found = _even(recipe, shape.layers, chunks)
    if len(found) != chunks or sum(found) != shape.layers:
        raise ValueError(f"{len(found)} chunks with {sum(found)} layers, for {chunks} chunks and {shape.layers} layers")
    return found


def layers_of_stage(recipe: Recipe, shape: ModelShape) -> tuple[int, ...]:
    """Return the number of layers of each pipeline stage.

    Raises:
        ValueError: The layers cannot be divided.
    """
    chunks, pipeline = stage_layers(recipe, shape), recipe.layout.pipeline
    return tuple(sum(chunks[stage::pipeline]) for stage in range(pipeline))


def _even(recipe: Recipe, layers: int, chunks: int) -> tuple[int, ...]:
    """Divide the layers evenly; the embedding and the loss each take the place of a layer if the recipe says so."""
    if recipe.backend == "torchtitan" and recipe.layout.pipeline > 1:
        first, last = (int(recipe.keys.get(key, 1)) for key in _TITAN)
    else:
        first, last = (int(bool(recipe.keys.get(key))) for key in _COUNTED_AS_LAYERS)
    total = layers + first + last
    if total % chunks:
        counted = f" (with embedding and output: {total})" if total > layers else ""
        raise ValueError(f"{layers} layers{counted} are no multiple of {chunks} chunks (pipeline x virtual_pipeline)")
    found = [total // chunks] * chunks
    found[0] -= first
    found[-1] -= last
    return tuple(found)


def _of_ends(recipe: Recipe, layers: int) -> tuple[int, ...]:
    """Give the first and the last stage the numbers of the recipe, and divide the rest; each stage divides its layers over its chunks."""
    pipeline, virtual = recipe.layout.pipeline, recipe.layout.virtual_pipeline
    ends = {0: int(recipe.keys.get(_FIRST) or 0), pipeline - 1: int(recipe.keys.get(_LAST) or 0)}
    ends = {stage: count for stage, count in ends.items() if count}
    rest, others = layers - sum(ends.values()), pipeline - len(ends)
    stages = [ends.get(stage, rest // others if others else 0) for stage in range(pipeline)]
    if (others and rest % others) or any(count % virtual for count in stages):
        raise ValueError(f"{layers} layers with {ends} in the first and last stage do not divide over {pipeline} x {virtual} chunks")
    return tuple(stages[stage] // virtual for _ in range(virtual) for stage in range(pipeline))


def _of_layout(text: str) -> tuple[int, ...]:
    """Count the layers (t) of each chunk in a layout such as Et*3|(t*2|)*6t*2,L."""
    text = text.replace(",", "").replace(" ", "")
    while _REPEATED.search(text):
        text = _REPEATED.sub(lambda match: "".join(_repeated(match)), text)
    return tuple(chunk.count("t") for chunk in text.split("|"))


def _repeated(match: re.Match[str]) -> Iterator[str]:
    group, group_times, letter, times = match.groups()
    yield (group or "") * int(group_times) if letter is None else letter * int(times)
