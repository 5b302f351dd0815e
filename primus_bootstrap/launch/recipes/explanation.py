"""What each choice of a recipe means for its model, in sentences with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.recipes.recipe import (
    DDP,
    DERIVED,
    DISTRIBUTED_OPTIMIZER,
    FSDP,
    FULL,
    NONE,
    OUT_OF_MEMORY,
    PUBLISHED,
    SELECTIVE,
)
from primus_bootstrap.launch.recipes.stages import layers_of_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

_EVIDENCE = {
    PUBLISHED: "the source trains with these values",
    OUT_OF_MEMORY: "the source ran out of memory with one sequence more per pass",
    DERIVED: "computed from the source, not measured: check it with `primus-cli estimate` before a long run",
}
_DATA = {
    DDP: "every replica has weights, gradients and optimizer states of its own; only gradients are exchanged",
    DISTRIBUTED_OPTIMIZER: "replicas have their own weights and gradients and divide the optimizer states, which need the most memory",
    FSDP: "weights, gradients and optimizer states are sharded; each layer's weights are gathered when they are used",
}
_RECOMPUTE = {
    NONE: "all activations are kept: the fastest, with the most memory",
    SELECTIVE: "results that are cheap to compute are computed again; matrix products are kept",
    FULL: "only the layer's input is kept; its forward pass runs again, a third more work",
}
_PRECISION = {
    "bf16": "matrix products in BF16, sums and optimizer states in FP32",
    "fp8": "matrix products of the layers in FP8, with scales per tensor; weights and optimizer states as in BF16",
    "mxfp8": "matrix products of the layers in FP8, with one scale per 32 elements; weights and optimizer states as in BF16",
}


@dataclass(frozen=True)
class Choice:
    """One choice: its name, its value, and what it means."""

    name: str
    value: str
    meaning: str


def explain(recipe: Recipe, shape: ModelShape) -> tuple[Choice, ...]:
    """Return the choices of a recipe that are not their defaults, and what they mean for the model."""
    return (*_model(shape), *_parallel(recipe, shape), *_data(recipe), *_batch(recipe), *_arithmetic(recipe))


def evidence(recipe: Recipe) -> str:
    """Return what the evidence of a recipe means."""
    return _EVIDENCE[recipe.evidence]


def _model(shape: ModelShape) -> Iterator[Choice]:
    total, active = shape.parameters() / 1e9, shape.active_parameters() / 1e9
    experts = f", {active:.1f} B of them used for a token" if shape.experts else ""
    states = f"{total * 18:,.0f} GB with BF16 weights, FP32 gradients and Adam's FP32 states"
    yield Choice("model", shape.name, f"{total:.1f} B parameters{experts}: {states}")


def _parallel(recipe: Recipe, shape: ModelShape) -> Iterator[Choice]:
    layout = recipe.layout
    if layout.tensor > 1:
        split = f"{shape.heads // layout.tensor} of {shape.heads} heads and 1/{layout.tensor} of every matrix per rank"
        sequence = "; norms and residuals are split along the sequence" if layout.sequence_parallel else ""
        yield Choice("tensor", str(layout.tensor), f"{split}{sequence}. Two exchanges per layer and pass, so it stays within a node")
    if layout.pipeline > 1:
        yield Choice("pipeline", str(layout.pipeline), _pipeline(recipe, shape))
    if layout.virtual_pipeline > 1:
        meaning = f"each stage has {layout.virtual_pipeline} chunks, which shortens the wait to 1/{layout.virtual_pipeline}"
        yield Choice("virtual_pipeline", str(layout.virtual_pipeline), f"{meaning} at the cost of more transfers")
    if layout.context > 1:
        part = recipe.batch.length // layout.context
        meaning = f"{layout.context} ranks share a sequence, {part} tokens each; attention exchanges keys and values"
        yield Choice("context", str(layout.context), meaning)
    if shape.experts and layout.expert > 1:
        share = shape.experts.count // layout.expert
        meaning = f"{share} of {shape.experts.count} experts per rank; tokens travel to their experts and back in every such layer"
        yield Choice("expert", str(layout.expert), meaning)


def _pipeline(recipe: Recipe, shape: ModelShape) -> str:
    """Return the layers of the stages, and how long they wait for each other: (p - 1) / (v m), arXiv:2104.04473, section 2.2."""
    layers, layout = layers_of_stage(recipe, shape), recipe.layout
    low, high = min(layers), max(layers)
    wait = (layout.pipeline - 1) / (layout.virtual_pipeline * recipe.micro_batches)
    counts = str(low) if low == high else f"{low} to {high}"
    return f"{counts} layers per stage; only activations pass between stages. Start and end of a step add {wait:.1%} to it"


def _data(recipe: Recipe) -> Iterator[Choice]:
    layout = recipe.layout
    if layout.replicas == 1:
        yield Choice("data", layout.data, "one replica, so nothing is shared or divided")
        return
    shards = f" over groups of {layout.shards} ranks" if layout.data == FSDP and layout.shards else ""
    yield Choice("data", f"{layout.data}, {layout.replicas} replicas", f"{_DATA[layout.data]}{shards}")


def _batch(recipe: Recipe) -> Iterator[Choice]:
    batch = recipe.batch
    tokens = batch.all * batch.length / 1e6
    steps = f"{recipe.micro_batches} forward passes of {batch.micro} per rank and step"
    yield Choice("batch", f"{batch.all} x {batch.length}", f"{tokens:.2f} M tokens per step; {steps}")


def _arithmetic(recipe: Recipe) -> Iterator[Choice]:
    recompute = recipe.recompute
    layers = f", {recompute.layers} layers of each chunk" if recompute.layers else ""
    yield Choice("recompute", recompute.kind + layers, _RECOMPUTE[recompute.kind])
    yield Choice("precision", recipe.precision, _PRECISION[recipe.precision])
