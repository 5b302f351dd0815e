"""The memory of a GPU in each pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.estimate.accounting import MEGATRON, accounting
from primus_bootstrap.launch.estimate.activations import kept_bytes, layer_bytes, norm_bytes, widths
from primus_bootstrap.launch.recipes import stages
from primus_bootstrap.launch.recipes.recipe import DDP, FSDP, FULL, NONE, SELECTIVE
from primus_bootstrap.launch.recipes.validity import expert_tensor

if TYPE_CHECKING:
    from primus_bootstrap.launch.estimate.accounting import Accounting
    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

GIB = 2**30


@dataclass(frozen=True)
class StageMemory:
    """The peak memory of a GPU of one pipeline stage, in GiB."""

    stage: int
    parameters: int  # on this rank, before sharding
    weights: float
    gradients: float
    optimizer: float
    activations: float
    temporary: float  # logits or the layer in backward, and gathered weights of FSDP
    fixed: float  # GPU context, collectives, libraries

    @property
    def total(self) -> float:
        """The sum."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary + self.fixed


@dataclass(frozen=True)
class RankParameters:
    """The parameters of a rank: `dense` shard over all data-parallel ranks, `experts` over those with the same experts."""

    dense: float
    experts: float
    largest_unit: float  # of a layer or of the output; FSDP gathers one unit at a time
    ends: float  # embedding and output on this rank


def stage_chunks(shape: ModelShape, recipe: Recipe) -> tuple[tuple[range, ...], ...]:
    """Return the layers of each pipeline stage, by the chunks of the interleaved schedule."""
    found: list[list[range]] = [[] for _ in range(recipe.layout.pipeline)]
    start = 0
    for chunk, count in enumerate(stages.stage_layers(recipe, shape)):
        found[chunk % recipe.layout.pipeline].append(range(start, start + count))
        start += count
    return tuple(map(tuple, found))


def stage_layers(shape: ModelShape, recipe: Recipe) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each pipeline stage, all chunks together."""
    return tuple(tuple(layer for chunk in chunks for layer in chunk) for chunks in stage_chunks(shape, recipe))


def rank_parameters(shape: ModelShape, recipe: Recipe, layers: tuple[int, ...], stage: int) -> RankParameters:
    """Return the parameters of a rank of a stage."""
    layout = recipe.layout
    tensor, experts = layout.tensor, shape.experts.count if shape.experts else 0
    per_rank = experts / (layout.expert * expert_tensor(recipe))
    dense, expert, largest = 0.0, 0.0, 0.0
    for layer in layers:
        whole = shape.layer_parameters(layer, 0)
        share = whole / tensor if not shape.has_experts(layer) else (whole - _router(shape)) / tensor + _router(shape)
        own = per_rank * shape.expert_parameters() if shape.has_experts(layer) else 0.0
        dense, expert, largest = dense + share, expert + own, max(largest, share + own)
    ends = sum(
        shape.embedding_parameters() / tensor
        for is_here in (stage == 0, stage == layout.pipeline - 1 and not (shape.tied and layout.pipeline == 1))
        if is_here
    )
    return RankParameters(dense + ends, expert, max(largest, ends and shape.embedding_parameters() / tensor), ends)


def _router(shape: ModelShape) -> int:
    """Return the parameters of the router, which each tensor rank has whole."""
    return shape.experts.count * (shape.width + shape.experts.router_bias) if shape.experts else 0


def in_flight(recipe: Recipe, stage: int) -> float:
    """Return how many micro-batches' activations a stage keeps at its peak, in units of all its layers.

    1F1B: PP - stage. Interleaved: (PP - stage - 1) x 2 + (VPP - 1) x PP + 1 chunks: arXiv:2104.04473, section 2.2.
    """
    count, chunks = recipe.layout.pipeline, recipe.layout.virtual_pipeline
    if chunks == 1:
        return min(recipe.micro_batches, count - stage)
    warm_up = (count - stage - 1) * 2 + (chunks - 1) * count + 1
    return min(recipe.micro_batches * chunks, warm_up) / chunks


@dataclass(frozen=True)
class _Rank:
    """What the memory of a rank depends on."""

    shape: ModelShape
    recipe: Recipe
    kept: Accounting
    chunks: tuple[range, ...]
    parameters: RankParameters

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on this rank."""
        return self.recipe.batch.micro * self.recipe.batch.length / self.recipe.layout.context

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of all chunks."""
        return tuple(layer for chunk in self.chunks for layer in chunk)

    @property
    def has_output(self) -> bool:
        """Whether the output and the loss are on this rank."""
        return self.layers[-1:] == (self.shape.layers - 1,)


def stage_memory(shape: ModelShape, recipe: Recipe, stage: int) -> StageMemory:
    """Return the peak memory of a stage."""
    chunks = stage_chunks(shape, recipe)[stage]
    parameters = rank_parameters(shape, recipe, tuple(layer for chunk in chunks for layer in chunk), stage)
    rank = _Rank(shape, recipe, accounting(recipe), chunks, parameters)
    weights, gradients, optimizer = _states(rank)
    return StageMemory(
        stage,
        int(parameters.dense + parameters.experts),
        weights / GIB,
        gradients / GIB,
        optimizer / GIB,
        _activations(rank, stage) / GIB,
        _temporary(rank) / GIB,
        rank.kept.fixed_gib,
    )


def memory(shape: ModelShape, recipe: Recipe) -> tuple[StageMemory, ...]:
    """Return the peak memory of every stage."""
    return tuple(stage_memory(shape, recipe, stage) for stage in range(recipe.layout.pipeline))


def _states(rank: _Rank) -> tuple[float, float, float]:
    """Return the bytes of weights with their copies, of gradients, and of the optimizer."""
    recipe, kept, parameters, layout = rank.recipe, rank.kept, rank.parameters, rank.recipe.layout
    # Megatron's optimizer also shards over the context ranks.
    dense_group = layout.replicas * layout.context
    expert_group = max(1, layout.gpus // (expert_tensor(recipe) * layout.expert * layout.pipeline))
    shards = {DDP: (1, 1), FSDP: (layout.shards or dense_group, layout.shards or expert_group)}.get(
        layout.data, (dense_group, expert_group)
    )
    whole = parameters.dense + parameters.experts
    sharded = parameters.dense / shards[0] + parameters.experts / shards[1]
    held = sharded if layout.data == FSDP else whole
    embedding = parameters.ends / 2 if layout.pipeline == 1 else parameters.ends  # a look-up: not cast
    cast = kept.cast * (parameters.dense - embedding + parameters.experts)
    return kept.weights * held + cast, kept.gradients * held, kept.optimizer * sharded


def _activations(rank: _Rank, stage: int) -> float:
    shape, recipe, kept = rank.shape, rank.recipe, rank.kept
    per_token = sum(kept_bytes(shape, recipe, kept, layer, position) for chunk in rank.chunks for position, layer in enumerate(chunk))
    last_norm = norm_bytes(kept, widths(shape, recipe)) if rank.has_output else 0.0
    return rank.tokens * (per_token * in_flight(recipe, stage) + last_norm)


def _temporary(rank: _Rank) -> float:
    """Return the bytes of the loss, or of the backward pass of a layer, whichever is larger, and of the weights that FSDP gathers."""
    layout = rank.recipe.layout
    is_sharded = layout.data == FSDP and layout.replicas * layout.context > 1
    unit = rank.parameters.largest_unit if is_sharded else 0.0
    logits = rank.tokens * rank.shape.vocabulary / layout.tensor if rank.has_output else 0.0
    # After the loss, the gradient of the logits is left (bf16), and a unit's gradients are in bf16, and in fp32 to be summed.
    backward = 2 * logits + _backward(rank) + (2 + 4) * unit
    # Two units are gathered in bf16: the current one and the next one.
    return max(rank.kept.logits * logits, backward) + 2 * 2 * unit


def _backward(rank: _Rank) -> float:
    """Return the bytes of a layer's recomputed activations and of its gradients, as shares that agree with torch's MemTracker."""
    if not rank.layers:
        return 0.0
    whole = max(layer_bytes(rank.shape, rank.recipe, rank.kept, layer) for layer in {rank.layers[0], rank.layers[-1]})
    selective = 0.0 if rank.recipe.backend == MEGATRON else 0.5
    repeated = {NONE: 0.0, SELECTIVE: selective, FULL: 0.65}[rank.recipe.recompute.kind]
    return rank.tokens * whole * (repeated + 0.5)
