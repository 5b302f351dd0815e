"""The activations that a layer keeps for the backward pass, in bytes per token of a rank.

A tensor is counted if the backward pass of an operation that uses it needs it. Attention is a fused kernel that keeps queries, keys,
values, its output and one fp32 number per head, and no scores: FlashAttention, arXiv:2205.14135.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.estimate.accounting import MEGATRON, TORCHTITAN
from primus_bootstrap.launch.recipes.recipe import FULL, SELECTIVE

if TYPE_CHECKING:
    from primus_bootstrap.launch.estimate.accounting import Accounting
    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

_FP32, _BF16 = 4, 2


@dataclass(frozen=True)
class Widths:
    """Elements per token of a rank: of the residual stream, of all query heads, of all key heads, of the attention's output."""

    residual: float
    queries: float
    keys: float
    values: float
    output: float
    heads: float


def widths(shape: ModelShape, recipe: Recipe) -> Widths:
    """Return the widths on one rank. Norms and residuals are split over the tensor ranks with sequence parallelism only."""
    tensor = recipe.layout.tensor
    residual = shape.width / (tensor if recipe.layout.sequence_parallel else 1)
    heads, kv_heads = shape.heads / tensor, max(1.0, shape.kv_heads / tensor)
    if shape.latent is not None:
        size = shape.latent.nope_size + shape.latent.rope_size
        return Widths(residual, heads * size, heads * size, heads * shape.latent.value_size, heads * shape.latent.value_size, heads)
    size = shape.head_size
    return Widths(residual, heads * size, kv_heads * size, kv_heads * size, heads * size, heads)


def norm_bytes(kept: Accounting, wide: Widths) -> float:
    """Return the bytes per token of a norm: what it keeps of its input, and its output, which a matrix product reads."""
    return (kept.norm + kept.linear_input) * wide.residual


def layer_bytes(shape: ModelShape, recipe: Recipe, kept: Accounting, layer: int) -> float:
    """Return the bytes per token of a layer without recomputation."""
    return _attention(shape, recipe, kept) + _feed_forward(shape, recipe, kept, layer)


def _attention(shape: ModelShape, recipe: Recipe, kept: Accounting) -> float:
    wide = widths(shape, recipe)
    norm = norm_bytes(kept, wide)
    projected = _BF16 * (wide.queries + wide.keys + wide.values)
    if shape.qk_norm:
        projected += _BF16 * (wide.queries + wide.keys)
    latent = _latent(shape, kept) if shape.latent is not None else 0.0
    return norm + projected + latent + _BF16 * wide.output + _FP32 * wide.heads


def _latent(shape: ModelShape, kept: Accounting) -> float:
    """Return the bytes of the compressed queries, keys and values, before and after their norms, and of the expanded keys and values."""
    latent = shape.latent
    if latent is None:
        return 0.0
    compressed = (_BF16 + kept.linear_input) * (latent.query_rank + latent.kv_rank)
    return compressed + _BF16 * latent.rope_size


def _feed_forward(shape: ModelShape, recipe: Recipe, kept: Accounting, layer: int) -> float:
    wide, tensor = widths(shape, recipe), recipe.layout.tensor
    norm = norm_bytes(kept, wide)
    if not shape.has_experts(layer) or shape.experts is None:
        return norm + _swiglu(kept, shape.ffn_width / tensor)
    experts = shape.experts
    # Every token goes to `per_token` experts; on average, a rank of the expert group gets as many tokens as it sends.
    routed = experts.per_token / tensor * (_swiglu(kept, experts.ffn_width) + kept.linear_input * shape.width)
    if recipe.backend != MEGATRON:
        routed += experts.per_token / tensor * _BF16 * shape.width  # the output, which is multiplied with the router's weight
    router = 2 * _FP32 * experts.count / (tensor if recipe.layout.sequence_parallel else 1)
    return norm + routed + router + (_swiglu(kept, experts.shared_width / tensor) if experts.shared_width else 0.0)


def _swiglu(kept: Accounting, width: float) -> float:
    """Return the bytes of the gate, its activation if it is kept, the other half, and the product, which a matrix product reads."""
    return _BF16 * (kept.kept_widths - 1) * width + kept.linear_input * width


def input_bytes(shape: ModelShape, recipe: Recipe, kept: Accounting) -> float:
    """Return the bytes per token of a layer of which only the input is kept."""
    return kept.residual * widths(shape, recipe).residual


def kept_bytes(shape: ModelShape, recipe: Recipe, kept: Accounting, layer: int, position: int) -> float:
    """Return the bytes per token that a layer keeps under the recipe's recomputation.

    `position` is its number in its chunk; Megatron counts the layers to recompute in each chunk.
    """
    recompute = recipe.recompute
    if recompute.kind == FULL and (not recompute.layers or position < recompute.layers):
        return input_bytes(shape, recipe, kept)
    if recompute.kind == SELECTIVE and recipe.backend != MEGATRON:
        return _selective(shape, recipe, kept, layer)
    # Megatron's selective recomputation repeats the core of attention, whose scores a fused kernel does not keep anyway.
    return layer_bytes(shape, recipe, kept, layer)


def _selective(shape: ModelShape, recipe: Recipe, kept: Accounting, layer: int) -> float:
    """Return the bytes of the input, of attention's output and of matrix products; torchtitan keeps every second product only."""
    wide = widths(shape, recipe)
    attention = _BF16 * wide.output + _FP32 * wide.heads
    experts = shape.experts if shape.has_experts(layer) else None
    width = shape.ffn_width if experts is None else experts.per_token * experts.ffn_width + experts.shared_width
    hidden = width / recipe.layout.tensor
    if str(recipe.keys.get("remat_policy", "")).endswith("except_mlp"):  # MaxText
        return input_bytes(shape, recipe, kept) + attention + _BF16 * (wide.queries + wide.keys + wide.values + wide.residual)
    if recipe.backend == TORCHTITAN:
        products = wide.keys + wide.residual + hidden
    else:
        copies = experts.per_token if experts is not None else 1  # outputs of the second half of the network
        products = wide.queries + wide.keys + wide.values + (1 + copies) * wide.residual + 2 * hidden
    return input_bytes(shape, recipe, kept) + attention + _BF16 * products
