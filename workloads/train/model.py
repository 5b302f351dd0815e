"""A Llama-style transformer: RMSNorm, rotary embedding, grouped-query attention, SwiGLU; dense, or with experts (moe.py).

Shapes: B batch, L sequence, D width, V vocabulary, H heads, K key heads, C width of a head, F inner width. With tensor parallelism, H and K
are the numbers of heads on this rank.
Architecture: "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.2.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from workloads.train.attention import attend
from workloads.train.moe import Experts

if TYPE_CHECKING:
    from workloads.train.context import Context
    from workloads.train.settings import ComputeSettings, ModelSettings

INIT_STD = 0.02

# Expensive operations whose results `recompute: selective` saves, by their names in torch's dispatcher.
_SAVED = frozenset(
    {
        "aten.mm.default",
        "aten.bmm.default",
        "aten._grouped_mm.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
    }
)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, model: ModelSettings, backend: str) -> None:
        """Create the four matrices."""
        super().__init__()
        self.head_width = model.width // model.heads
        self.backend = backend
        self.context: Context | None = None
        self.query = nn.Linear(model.width, model.heads * self.head_width, bias=False)
        self.key = nn.Linear(model.width, model.kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(model.width, model.kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(model.heads * self.head_width, model.width, bias=False)

    def forward(self, x_BLD: Tensor, rope_LC: Tensor) -> Tensor:
        """Return the attention output of each position."""
        q_BHLC, k_BKLC, v_BKLC = (
            layer(x_BLD).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attend_to = self.context.attend if self.context else attend
        y_BHLC = attend_to(rotate(q_BHLC, rope_LC), rotate(k_BKLC, rope_LC), v_BKLC, self.backend)
        y_BLD: Tensor = self.output(y_BHLC.transpose(1, 2).flatten(2))
        return y_BLD


class FeedForward(nn.Module):
    """SwiGLU: a gated feed-forward network."""

    def __init__(self, model: ModelSettings) -> None:
        """Create the three matrices."""
        super().__init__()
        self.gate = nn.Linear(model.width, model.ffn_width, bias=False)
        self.up = nn.Linear(model.width, model.ffn_width, bias=False)
        self.down = nn.Linear(model.ffn_width, model.width, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Return the output of each position."""
        y_BLD: Tensor = self.down(functional.silu(self.gate(x_BLD)) * self.up(x_BLD))
        return y_BLD


class Block(nn.Module):
    """Attention and feed-forward network, each with a norm and a residual connection."""

    def __init__(self, model: ModelSettings, compute: ComputeSettings) -> None:
        """Create the parts. `compute.recompute` selects the activations that the backward pass recomputes."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(model.width, eps=model.norm_eps)
        self.attention = Attention(model, compute.attention)
        self.ffn_norm = nn.RMSNorm(model.width, eps=model.norm_eps)
        self.ffn: nn.Module = Experts(model) if model.experts else FeedForward(model)
        self.dropout = model.dropout
        self.recompute = compute.recompute

    def forward(self, x_BLD: Tensor, rope_LC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new vectors and this block's share of the balance loss (0 without experts)."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self._forward(x_BLD, rope_LC)
        contexts = partial(create_selective_checkpoint_contexts, _keep_costly) if self.recompute == "selective" else noop_context_fn
        result: tuple[Tensor, Tensor] = checkpoint(self._forward, x_BLD, rope_LC, use_reentrant=False, context_fn=contexts)
        return result

    def _forward(self, x_BLD: Tensor, rope_LC: Tensor) -> tuple[Tensor, Tensor]:
        h_BLD = x_BLD + self._drop(self.attention(self.attention_norm(x_BLD), rope_LC))
        result = self.ffn(self.ffn_norm(h_BLD))
        y_BLD, balance = result if isinstance(result, tuple) else (result, torch.zeros((), device=rope_LC.device))
        return h_BLD + self._drop(y_BLD), balance

    def _drop(self, x_BLD: Tensor) -> Tensor:
        return functional.dropout(x_BLD, self.dropout, training=self.training) if self.dropout else x_BLD


class Transformer(nn.Module):
    """The model, or consecutive blocks of it: tokens or vectors in, logits or vectors and the balance loss out."""

    def __init__(self, model: ModelSettings, compute: ComputeSettings, blocks: range | None = None) -> None:
        """Create the modules of the blocks; the first block has the embedding, the last one the output. `materialise` allocates them.

        `context` is this rank's part of a sequence, None for the whole. `length` is that of whole sequences, None if it is the input's.
        """
        super().__init__()
        chosen = range(model.layers) if blocks is None else blocks
        self.settings = model
        self.context: Context | None = None
        self.length: int | None = None
        self.embedding = nn.Embedding(model.vocabulary, model.width) if chosen.start == 0 else None
        self.blocks = nn.ModuleDict({str(index): Block(model, compute) for index in chosen})
        last = chosen.stop == model.layers
        self.norm = nn.RMSNorm(model.width, eps=model.norm_eps) if last else None
        self.output = nn.Linear(model.width, model.vocabulary, bias=False) if last else None

    def share(self, context: Context | None, length: int) -> None:
        """Process this rank's part of sequences of `length` tokens."""
        self.context, self.length = context, length
        for module in self.modules():
            if isinstance(module, Attention):
                module.context = context

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of every position's next token, or the vectors for the next block, and the balance loss."""
        rope_LC = self._rope(x)
        x_BLD = self.embedding(x) if self.embedding is not None else x
        balance = torch.zeros((), device=x.device)
        for block in self.blocks.values():
            x_BLD, share = block(x_BLD, rope_LC)
            balance = balance + share
        if self.norm is not None and self.output is not None:
            x_BLD = self.output(self.norm(x_BLD))
        return x_BLD, balance

    def _rope(self, x: Tensor) -> Tensor:
        length = self.length or x.shape[1]
        angles_LC = rotary_angles(self.settings, length, x.device)
        return angles_LC[self.context.positions().to(x.device)] if self.context else angles_LC


def rotary_angles(model: ModelSettings, length: int, device: torch.device) -> Tensor:
    """Return the angle of each position and pair of a head's values (RoFormer, arXiv:2104.09864, section 3.2.2)."""
    pairs = model.width // model.heads // 2
    frequency_C = _scaled(model, model.rope_theta ** (-torch.arange(pairs, device=device, dtype=torch.float32) / pairs))
    return torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency_C)


def _scaled(model: ModelSettings, frequency_C: Tensor) -> Tensor:
    """Divide low frequencies by the factor, and blend those between low and high: "The Llama 3 Herd of Models", section 3.4.2.

    Constants and blending as in https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py (apply_scaling).
    """
    if model.rope_factor == 1.0:
        return frequency_C
    turns_C = model.rope_trained_length * frequency_C / (2 * math.pi)  # turns within the trained length
    low, high = model.rope_low_frequency, model.rope_high_frequency
    kept_C = ((turns_C - low) / (high - low)).clamp(0, 1)
    return frequency_C * (kept_C + (1 - kept_C) / model.rope_factor)


def rotate(x_BHLC: Tensor, angles_LC: Tensor) -> Tensor:
    """Rotate each pair (first half, second half) of a head's values by its angle."""
    first, second = x_BHLC.float().chunk(2, dim=-1)
    cosine, sine = angles_LC.cos(), angles_LC.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x_BHLC.dtype)


def materialise(module: nn.Module, device: torch.device, *, seed: int, name: str, layers: int) -> None:
    """Allocate a module from the meta device and set its initial values.

    The values of a parameter depend on the seed and its name only, so every sharding starts from the same weights.
    """
    module.to_empty(device=device)
    for key, parameter in module.named_parameters(prefix=name):
        # As in GPT-2: scale down matrices that add to the residual, by the number of additions.
        std = INIT_STD / (2 * layers) ** 0.5 if key.endswith(("attention.output.weight", "down.weight", "down_EFD")) else INIT_STD
        generator = torch.Generator(device).manual_seed(_seed_of(seed, key))
        with torch.no_grad():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            elif key.endswith("lora_b"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, std, generator=generator)


def _seed_of(seed: int, name: str) -> int:
    value = seed
    for byte in name.encode():
        value = (value * 1000003 + byte) % (2**61 - 1)
    return value


def _keep_costly(_context: object, operation: object, *_arguments: object, **_options: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if str(operation) in _SAVED else CheckpointPolicy.PREFER_RECOMPUTE
