"""The size of a model and the FLOPs of a token, from its own parameters and configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts

_EXPERTS = ".experts."


def with_model(facts: RunFacts, model: Any, *, frozen: bool) -> RunFacts:
    """Return the facts with the numbers of a loaded model.

    FLOPs are 6 N + 12 L H Q T a token (PaLM, arXiv:2204.02311, appendix B). With `frozen` weights, which need no own gradient, they
    are two thirds of it. Weights of experts count by the share of experts that a token uses.
    """
    config = model.config
    total = sum(parameter.numel() for parameter in model.parameters())
    experts = sum(parameter.numel() for name, parameter in model.named_parameters() if _EXPERTS in f".{name}.")
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    used = (getattr(config, "num_experts_per_tok", None) or 1) / count
    embedding = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    active = int(total - experts + experts * used - embedding)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 12.0 * config.num_hidden_layers * config.num_attention_heads * head * facts.sequence_length
    flops = (6.0 * active + attention) * (2 / 3 if frozen else 1)
    return replace(facts, flops_per_token=flops, parameters=total, active_parameters=active)
