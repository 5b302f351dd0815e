"""The time of a step, from the rates of matrix products, attention, memory and collectives.

The model counts what overlaps: gradients and gathered weights are hidden behind computation as far as there is any, tensor and expert
traffic only in part. It does not know stragglers, input pipelines or checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.estimate.accounting import EAGER_WIDTHS, accounting
from primus_bootstrap.launch.estimate.activations import layer_bytes, widths
from primus_bootstrap.launch.estimate.memory import rank_parameters, stage_chunks, stage_layers
from primus_bootstrap.launch.estimate.rates import GPUS_PER_HOST
from primus_bootstrap.launch.recipes.recipe import DDP, FSDP, FULL, SELECTIVE

if TYPE_CHECKING:
    from primus_bootstrap.launch.estimate.memory import RankParameters
    from primus_bootstrap.launch.estimate.rates import Rates
    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

_BF16, _FP32 = 2, 4
# Backward needs the scores again: 2.5 times the products of the forward pass (FlashAttention-2, arXiv:2307.08691, section 4.1).
_ATTENTION_PASSES = 3.5
# A kept tensor is written once and read once in each pass, and so is its gradient. Without compile, so are tensors that are not kept.
_TRAFFIC_PER_KEPT_BYTE, _EAGER_TRAFFIC = 4.0, 8.0
# Routing, sorting and sending tokens to experts takes longer than their bytes: per layer and micro-batch, fitted to published runs.
_ROUTING_S = 0.008
# A token is sent to this many hosts at most (DeepSeek-V3, arXiv:2412.19437, section 2.1.2); with fewer experts per token, to each of them.
_HOSTS_PER_TOKEN = 4
# Shares of traffic that computation does not hide.
_TENSOR_EXPOSED, _EXPERT_EXPOSED, _CONTEXT_EXPOSED, _DATA_EXPOSED = 0.7, 0.8, 0.2, 0.1
# Bytes that an Adam step reads and writes per parameter: weight, gradient, two moments, and the copy for the arithmetic.
_OPTIMIZER_BYTES = 30.0


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by cause; together they are the step."""

    matrix_products: float
    attention: float
    other_kernels: float
    recompute: float
    bubble: float  # waiting for other pipeline stages
    exposed_communication: float
    optimizer: float

    @property
    def total(self) -> float:
        """The step time in seconds."""
        parts = (self.matrix_products, self.attention, self.other_kernels, self.recompute, self.bubble)
        return sum(parts) + self.exposed_communication + self.optimizer


@dataclass(frozen=True)
class _Pass:
    """Seconds of one micro-batch on one stage."""

    products: float
    attention: float
    other: float
    recompute: float
    traffic: float

    @property
    def total(self) -> float:
        return self.products + self.attention + self.other + self.recompute + self.traffic


def step_time(shape: ModelShape, recipe: Recipe, rates: Rates) -> StepTime:
    """Return the time of a step. The slowest stage determines it."""
    layout, count, layers_of = recipe.layout, recipe.micro_batches, stage_layers(shape, recipe)
    passes = [_stage_pass(shape, recipe, rates, chunks, stage) for stage, chunks in enumerate(stage_chunks(shape, recipe))]
    slowest = max(passes, key=lambda item: item.total)
    data, optimizer = max(
        (
            _data_parallel(recipe, rates, rank_parameters(shape, recipe, layers, stage), passes[stage])
            for stage, layers in enumerate(layers_of)
        ),
        key=sum,
    )
    return StepTime(
        matrix_products=count * slowest.products,
        attention=count * slowest.attention,
        other_kernels=count * slowest.other,
        recompute=count * slowest.recompute,
        bubble=(layout.pipeline - 1) / layout.virtual_pipeline * slowest.total,
        exposed_communication=count * slowest.traffic + data,
        optimizer=optimizer,
    )


def tokens_per_s(recipe: Recipe, step: StepTime) -> float:
    """Return the tokens per second of one GPU."""
    return recipe.batch.all * recipe.batch.length / step.total / recipe.layout.gpus


def _stage_pass(shape: ModelShape, recipe: Recipe, rates: Rates, chunks: tuple[range, ...], stage: int) -> _Pass:
    tokens = recipe.batch.micro * recipe.batch.length / recipe.layout.context
    kept = accounting(recipe)
    per_byte = _TRAFFIC_PER_KEPT_BYTE if kept.kept_widths < EAGER_WIDTHS else _EAGER_TRAFFIC
    products, attention, other, repeated = 0.0, 0.0, 0.0, 0.0
    for position, layer in (item for chunk in chunks for item in enumerate(chunk)):
        speed = rates.gemm_flops(recipe.precision, _smallest_dimension(shape, recipe, layer))
        layer_products = 6 * _active(shape, layer) / recipe.layout.tensor * tokens / speed
        layer_attention = _attention_flops(shape, recipe, layer) * tokens / rates.attention_flops()
        products, attention = products + layer_products, attention + layer_attention
        layer_other = per_byte * layer_bytes(shape, recipe, kept, layer) * tokens / (rates.memory * 1e9)
        other += layer_other
        share = _recomputed(recipe, position)
        repeated += share * (layer_products / 3 + layer_attention / _ATTENTION_PASSES + layer_other / 4)
    if stage == recipe.layout.pipeline - 1:
        products += 6 * shape.embedding_parameters() / recipe.layout.tensor * tokens / rates.gemm_flops("bf16", shape.width)
        other += 2 * kept.logits * shape.vocabulary / recipe.layout.tensor * tokens / (rates.memory * 1e9)
    traffic = _layer_traffic(shape, recipe, rates, tokens, tuple(layer for chunk in chunks for layer in chunk))
    return _Pass(products, attention, other, repeated, traffic)


def _smallest_dimension(shape: ModelShape, recipe: Recipe, layer: int) -> float:
    """Return the smallest dimension of the feed-forward network's matrices on a rank, which dominate."""
    if shape.has_experts(layer) and shape.experts is not None:
        return min(shape.width, shape.experts.ffn_width)
    return min(shape.width, shape.ffn_width / recipe.layout.tensor)


def _active(shape: ModelShape, layer: int) -> int:
    return shape.layer_parameters(layer, shape.experts.per_token if shape.experts else 0)


def _attention_flops(shape: ModelShape, recipe: Recipe, layer: int) -> float:
    """Return the FLOPs of attention per token, forward and backward; a token sees half of the sequence on average."""
    wide = widths(shape, recipe)
    return 2 * _ATTENTION_PASSES * (wide.queries + wide.output) * shape.seen_tokens(layer, recipe.batch.length) / 2


def _recomputed(recipe: Recipe, position: int) -> float:
    """Return the share of a layer's forward pass that the backward pass repeats."""
    kind, layers = recipe.recompute.kind, recipe.recompute.layers
    if kind == FULL:
        return 1.0 if not layers or position < layers else 0.0
    return {SELECTIVE: 0.25}.get(kind, 0.0)


def _layer_traffic(shape: ModelShape, recipe: Recipe, rates: Rates, tokens: float, layers: tuple[int, ...]) -> float:
    """Return the seconds of tensor, expert and context traffic that computation does not hide."""
    layout = recipe.layout
    seconds = 0.0
    if layout.tensor > 1:
        # A pair of gather and scatter around attention and around the feed-forward network, in each pass.
        moved = 8 * len(layers) * tokens * shape.width * _BF16 * (layout.tensor - 1) / layout.tensor
        seconds += _TENSOR_EXPOSED * moved / rates.bandwidth(layout.tensor)
    if layout.expert > 1 and shape.experts is not None:
        count = sum(shape.has_experts(layer) for layer in layers)
        # Tokens go to their experts and back, in each pass.
        copies = shape.experts.per_token if layout.expert <= GPUS_PER_HOST else min(shape.experts.per_token, _HOSTS_PER_TOKEN)
        moved = 4 * count * copies * tokens / layout.tensor * shape.width * _BF16 * (layout.expert - 1) / layout.expert
        seconds += _EXPERT_EXPOSED * moved / rates.exchange_bandwidth(layout.expert) + _ROUTING_S * count
    if layout.context > 1:
        wide = widths(shape, recipe)
        moved = 3 * len(layers) * tokens * (layout.context - 1) * (wide.keys + wide.values) * _BF16
        seconds += _CONTEXT_EXPOSED * moved / rates.bandwidth(layout.context, layout.tensor)
    return seconds


def _data_parallel(recipe: Recipe, rates: Rates, parameters: RankParameters, one: _Pass) -> tuple[float, float]:
    """Return the exposed seconds of gradients and weights per step, and the seconds of the optimizer."""
    layout = recipe.layout
    ranks = layout.replicas * layout.context
    count = parameters.dense + parameters.experts
    shards = 1 if layout.data == DDP else ranks
    optimizer = _OPTIMIZER_BYTES * count / shards / (rates.memory * 1e9)
    if ranks == 1:
        return 0.0, optimizer
    speed = rates.bandwidth(ranks, layout.tensor)
    if layout.data == FSDP:
        # Weights are gathered in both passes, gradients are summed, for every micro-batch.
        moved = count * (2 * _BF16 + _FP32) * recipe.micro_batches
        hidden = one.total * recipe.micro_batches
    else:
        moved = count * (_BF16 + accounting(recipe).gradients)
        hidden = one.total * 2 / 3  # the backward pass of the last micro-batch
    seconds = moved * (ranks - 1) / ranks / speed
    return max(_DATA_EXPOSED * seconds, seconds - 0.9 * hidden), optimizer
