"""Model FLOPs per token.

FLOPs per token = 6 N + 12 L H Q T: PaLM, arXiv:2204.02311, appendix B. N parameters, L layers, H heads, Q width of a head, T sequence
length. N excludes the input embedding, which is a look-up, and experts that do not process the token. As in that paper, the attention term
is not halved for the causal mask, and recomputation does not count: the number measures the training speed, not the device's utilization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.train.settings import ModelSettings

FORMULA = "6 N + 12 L H Q T a token; PaLM, arXiv:2204.02311, appendix B"


def parameters(model: ModelSettings) -> int:
    """Return the number of parameters."""
    return _embedding(model) + _output(model) + model.layers * _block(model, max(1, model.experts))


def active_parameters(model: ModelSettings) -> int:
    """Return N: the parameters that multiply with a token."""
    return _output(model) + model.layers * _block(model, model.experts_per_token if model.experts else 1)


def flops_per_token(model: ModelSettings, sequence_length: int) -> float:
    """Return the FLOPs of forward and backward pass for one token."""
    return 6.0 * active_parameters(model) + 12.0 * model.layers * model.width * sequence_length


def _embedding(model: ModelSettings) -> int:
    return model.vocabulary * model.width


def _output(model: ModelSettings) -> int:
    return model.vocabulary * model.width + model.width


def _block(model: ModelSettings, experts: int) -> int:
    head_width = model.width // model.heads
    attention = 2 * model.width * head_width * (model.heads + model.kv_heads)
    router = model.width * model.experts
    return attention + 3 * model.width * model.ffn_width * experts + router + 2 * model.width
