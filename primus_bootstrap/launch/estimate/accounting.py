"""How a backend stores the states of a parameter and the activations of a layer: bytes, and how often a tensor is kept for backward.

Sources: megatron-core 0.19.2 (optimizer with fp32 master weights, arXiv:1909.08053; fused SwiGLU), torchtitan 0.2.2 (FSDP2 with fp32
parameters, bf16 arithmetic), MaxText 0.2.5 (fp32 parameters, XLA), workloads/train. Adam has two fp32 moments in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.recipes.recipe import DDP, FSDP

if TYPE_CHECKING:
    from primus_bootstrap.launch.recipes.recipe import Recipe

# Tensors as wide as the feed-forward network that SwiGLU keeps without compile or fused kernels.
EAGER_WIDTHS = 4
NATIVE, MEGATRON, TORCHTITAN, MAXTEXT = "native", "megatron", "torchtitan", "maxtext"


@dataclass(frozen=True)
class Accounting:
    """Bytes per parameter (`weights`, `gradients`, `optimizer`, `cast`), per element, and counts of kept tensors.

    `cast` are copies of the weights in another precision; each rank has those of all its layers. `kept_widths` is how many tensors as wide
    as the feed-forward network are kept per token, `residual` the bytes of an element of the residual stream, `norm` those that a norm
    keeps besides its output, `logits` the bytes per logit at the peak of the loss, and `linear_input` the bytes of an element of a matrix
    product's input.
    """

    weights: float
    gradients: float
    optimizer: float
    cast: float = 0.0
    kept_widths: int = EAGER_WIDTHS
    residual: int = 2
    norm: int = 2
    logits: float = 14.0
    linear_input: float = 2.0
    fixed_gib: float = 2.0  # GPU context, collective buffers, work space of libraries


# fp32 logits, their log-softmax and two gradients, and the bf16 logits: torch's cross_entropy without compile. Compiled or fused, the fp32
# copies are not written. The compiled values are those of measured runs: docs/measurements.md (torch 2.11) and torchtitan's
# benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3.
_EAGER_LOGITS, _COMPILED_LOGITS, _TORCHTITAN_COMPILED_LOGITS = 14.0, 6.0, 8.0
_VOCABULARY_PARALLEL_LOGITS, _FUSED_LOGITS = 10.0, 6.0
# Without a fused kernel, a norm keeps its input and the normalized input in fp32.
_EAGER_NORM = 8
_TORCH = Accounting(weights=4, gradients=4, optimizer=8)


def accounting(recipe: Recipe) -> Accounting:
    """Return the accounting of a recipe's backend and options."""
    found = _ACCOUNTINGS[recipe.backend](recipe)
    if recipe.precision != "bf16":
        # Inputs of matrix products are kept in 8 bits. Megatron keeps an fp8 copy of the weights and its transpose over the micro-batches,
        # unless the weights themselves are fp8 or gathered for each layer.
        copies = recipe.backend == MEGATRON and recipe.layout.data != FSDP and not recipe.keys.get("fp8_param_gather")
        found = replace(found, linear_input=1.0, cast=found.cast + 2.0 * copies)
    return found


def _native(recipe: Recipe) -> Accounting:
    found = _of_torch(recipe, compiled=bool(recipe.keys.get("compute.compile")), compiled_logits=_COMPILED_LOGITS)
    if recipe.layout.data != DDP:
        return replace(found, cast=_PIPELINE_CAST) if recipe.layout.pipeline > 1 else found
    # Autocast: bf16 copies of the weights, and an fp32 residual stream. The second copy of the gradients is measured: docs/measurements.md.
    return replace(found, gradients=8, cast=2.0, residual=4, norm=max(4, found.norm))


def _torchtitan(recipe: Recipe) -> Accounting:
    found = _of_torch(recipe, compiled=bool(recipe.keys.get("compile.enable")), compiled_logits=_TORCHTITAN_COMPILED_LOGITS)
    return replace(found, cast=_PIPELINE_CAST) if recipe.layout.pipeline > 1 else found


def _of_torch(recipe: Recipe, *, compiled: bool, compiled_logits: float) -> Accounting:
    # Logits that are split over tensor ranks are not compiled.
    logits = compiled_logits if compiled and recipe.layout.tensor == 1 else _EAGER_LOGITS
    return replace(_TORCH, kept_widths=3 if compiled else EAGER_WIDTHS, norm=2 if compiled else _EAGER_NORM, logits=logits)


def _maxtext(recipe: Recipe) -> Accounting:
    # The moments and gradients have the type of the weights.
    size = _BYTES[_MAXTEXT_TYPES[str(recipe.keys.get("weight_dtype", "float32"))]]
    return replace(_TORCH, weights=size, gradients=size, optimizer=2 * size, kept_widths=3, logits=_FUSED_LOGITS, fixed_gib=3.0)


def _megatron(recipe: Recipe) -> Accounting:
    keys = recipe.keys
    logits = _FUSED_LOGITS if keys.get("cross_entropy_loss_fusion") else _VOCABULARY_PARALLEL_LOGITS
    moments = sum(_BYTES[str(keys.get(name, "fp32"))] for name in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    gradients = 2 if keys.get("grad_reduce_in_bf16") else _BYTES[str(keys.get("main_grads_dtype", "fp32"))]
    # torch FSDP2 in Megatron keeps bf16 gradients during backward; the fp32 ones exist in the optimizer step only.
    return Accounting(2, 2 if recipe.layout.data == FSDP else gradients, 4 + moments, kept_widths=3, logits=logits, fixed_gib=3.0)


# FSDP with pipeline stages: weights stay gathered (bf16), and gradients are summed over the micro-batches before they are sharded.
_PIPELINE_CAST = 2.0 + 4.0
_MAXTEXT_TYPES = {"float32": "fp32", "bfloat16": "bf16"}
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_ACCOUNTINGS = {NATIVE: _native, MEGATRON: _megatron, TORCHTITAN: _torchtitan, MAXTEXT: _maxtext}
