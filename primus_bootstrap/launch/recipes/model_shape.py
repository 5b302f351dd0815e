"""The shape of a model, and the number of its parameters.

The counts follow the layers of the published checkpoints; tests compare them with the published numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primus_bootstrap.core.structured import readable


@readable
@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: DeepSeek-V2, arXiv:2405.04434, section 2.1. Sizes of vectors."""

    kv_rank: int
    rope_size: int  # the part of a query or key with rotary positions
    nope_size: int  # the part without
    value_size: int
    query_rank: int = 0  # 0: queries are not compressed


@readable
@dataclass(frozen=True)
class Experts:
    """Feed-forward networks of which a token uses some."""

    count: int
    per_token: int
    ffn_width: int  # of one expert
    shared_width: int = 0  # width of the network that every token uses, all shared experts together
    dense_layers: int = 0  # the first layers have one dense network instead
    every: int = 1  # of the other layers, each n-th has experts, counted from the end of the group
    router_bias: bool = False  # one bias per expert in the router
    bias: bool = False  # the matrices of the experts have biases


@readable
@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with SwiGLU and RMSNorm.

    Widths are numbers of elements. `window` is the length that the layers with local attention see; `window_every` says how many of
    these layers come with one of global attention: 0 means that all layers are global.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_width: int  # of a dense layer
    vocabulary: int
    tied: bool = False  # the output uses the weights of the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # a norm of each head's queries and of its keys, with weights
    sinks: bool = False  # one learnt number per head in the softmax
    latent: LatentAttention | None = None
    experts: Experts | None = None
    window: int = 0
    window_every: int = 0
    context: int = 0  # longest sequence of the published model
    rope_theta: float = 10000.0  # base of the rotary position embedding
    norm_eps: float = 1e-5
    source: str = ""  # where the shape is published
    published_parameters: int = 0  # the published count, to compare parameters() with; 0: none
    published_to: int = 1  # the unit to which the published count is rounded: 1 means exact
    # By backend: its own settings that belong to the model and that the other fields do not express.
    keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has experts."""
        if self.experts is None or layer < self.experts.dense_layers:
            return False
        return (layer - self.experts.dense_layers + 1) % self.experts.every == 0

    def attention_parameters(self) -> int:
        """Return the parameters of one layer's attention, without the norm before it."""
        if self.latent is not None:
            return self._latent_parameters(self.latent)
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        matrices = self.width * (2 * queries + 2 * keys)
        biases = (queries + 2 * keys) * self.qkv_bias + self.width * self.output_bias
        return matrices + biases + 2 * self.head_size * self.qk_norm + self.heads * self.sinks

    def _latent_parameters(self, latent: LatentAttention) -> int:
        query_size = self.heads * (latent.nope_size + latent.rope_size)
        query = latent.query_rank * (self.width + 1 + query_size) if latent.query_rank else self.width * query_size
        compress = self.width * (latent.kv_rank + latent.rope_size) + latent.kv_rank
        expand = latent.kv_rank * self.heads * (latent.nope_size + latent.value_size)
        return query + compress + expand + self.heads * latent.value_size * self.width

    def dense_ffn_parameters(self) -> int:
        """Return the parameters of a dense layer's feed-forward network."""
        return 3 * self.width * self.ffn_width

    def expert_parameters(self) -> int:
        """Return the parameters of one expert."""
        if self.experts is None:
            return 0
        bias = (2 * self.experts.ffn_width + self.width) * self.experts.bias
        return 3 * self.width * self.experts.ffn_width + bias

    def router_parameters(self) -> int:
        """Return the parameters of one layer's router and of its shared experts."""
        if self.experts is None:
            return 0
        router = self.experts.count * (self.width + self.experts.router_bias)
        return router + 3 * self.width * self.experts.shared_width

    def embedding_parameters(self) -> int:
        """Return the parameters of the embedding, or of an output that is not tied to it."""
        return self.vocabulary * self.width

    def layer_parameters(self, layer: int, experts: int) -> int:
        """Return the parameters of a layer, norms included, with `experts` experts counted."""
        common = self.attention_parameters() + 2 * self.width
        if self.has_experts(layer):
            return common + self.router_parameters() + experts * self.expert_parameters()
        return common + self.dense_ffn_parameters()

    def parameters(self) -> int:
        """Return the number of parameters."""
        count = self.experts.count if self.experts else 0
        return self._total(count) + (1 if self.tied else 2) * self.embedding_parameters()

    def active_parameters(self) -> int:
        """Return the parameters that multiply with a token: without the embedding, which is a look-up, and without unused experts."""
        return self._total(self.experts.per_token if self.experts else 0) + self.embedding_parameters()

    def _total(self, experts: int) -> int:
        return sum(self.layer_parameters(layer, experts) for layer in range(self.layers)) + self.width

    def flops_per_token(self, sequence_length: int) -> float:
        """Return the FLOPs of forward and backward pass for one token.

        6 N + 12 L H Q T: PaLM, arXiv:2204.02311, appendix B, as workloads/train/flops.py. Local layers see at most their window.
        """
        queries = self.heads * self.head_size
        if self.latent is not None:  # scores of (nope + rope) and values of value_size
            queries = self.heads * (self.latent.nope_size + self.latent.rope_size + self.latent.value_size) // 2
        seen = sum(self.seen_tokens(layer, sequence_length) for layer in range(self.layers))
        return 6.0 * self.active_parameters() + 12.0 * queries * seen

    def seen_tokens(self, layer: int, sequence_length: int) -> int:
        """Return how many tokens a token of a layer can see at most."""
        is_local = bool(self.window_every) and (layer + 1) % (self.window_every + 1) != 0
        return min(sequence_length, self.window) if is_local else sequence_length
