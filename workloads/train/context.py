"""Context parallelism: the ranks of a group share each sequence, and exchange keys and values in attention.

Each rank has two chunks of a sequence, one from its first and one from its second half, so that all ranks have the same number of causal
products. Each rank gathers the keys and values of all ranks ("The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2), which works
with every attention backend on every device. torch's own context_parallel passes parts around a ring, and has no CPU kernel.

Shapes: see model.py. L is the number of this rank's positions, G of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right

from workloads.common.errors import SettingsError
from workloads.common.torch_release import gather, scatter_sum
from workloads.train.attention import kernels

if TYPE_CHECKING:
    from torch import Tensor

    from workloads.common.process_group import Group
    from workloads.train.settings import Settings

# These backends take a mask. The others compute the same mask themselves, aligned to the last key.
_MASKED = ("efficient", "math")


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's part of every sequence: the chunks with the numbers `chunks`, of `chunk` tokens each.

    `masks` hide the keys after each query of a chunk, in the form that kernels compute themselves. torch cannot create this form while
    activations are recomputed, so it is created once.
    """

    ranks: dist.ProcessGroup
    size: int
    chunks: tuple[int, int]
    chunk: int
    masks: tuple[CausalBias, CausalBias]

    def positions(self) -> Tensor:
        """Return the positions of this rank's tokens."""
        return torch.cat([torch.arange(number * self.chunk, (number + 1) * self.chunk) for number in self.chunks])

    def attend(self, q_BHLC: Tensor, k_BKLC: Tensor, v_BKLC: Tensor, backend: str) -> Tensor:
        """Return the attention of this rank's queries to all keys before them."""
        keys, values = self._in_order(torch.stack((k_BKLC, v_BKLC))).unbind()
        parts = []
        for number, mask, q_part in zip(self.chunks, self.masks, torch.split(q_BHLC, self.chunk, dim=2), strict=True):
            end = (number + 1) * self.chunk
            parts.append(attend_to_last(q_part, keys[:, :, :end], values[:, :, :end], mask, backend))
        return torch.cat(parts, dim=2)

    def _in_order(self, own: Tensor) -> Tensor:
        """Gather the keys and values (2, B, K, L, C) of all ranks, in the order of the positions (2, B, K, G, C)."""
        of_ranks = _Gather.apply(own, self.ranks).unbind()  # type: ignore[no-untyped-call]
        halves = [part.chunk(2, dim=3) for part in of_ranks]
        return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], dim=3)


class _Gather(torch.autograd.Function):
    """Stack the tensors of all ranks; backward sums the gradients of all ranks for this rank's tensor."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: dist.ProcessGroup) -> Tensor:
        ctx.ranks = ranks
        gathered = own.new_empty(dist.get_world_size(ranks) * own.shape[0], *own.shape[1:])
        gather(gathered, own.contiguous(), ranks)
        return gathered.view(-1, *own.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = torch.empty_like(gradient[0], memory_format=torch.contiguous_format)
        scatter_sum(own, gradient.flatten(0, 1).contiguous(), ctx.ranks)
        return own, None


def attend_to_last(q_BHLC: Tensor, k_BKGC: Tensor, v_BKGC: Tensor, mask: Tensor, backend: str) -> Tensor:
    """Return the attention of queries whose last one is at the position of the last key; `mask` is that of causal_lower_right."""
    grouped = q_BHLC.shape[1] != k_BKGC.shape[1]
    if backend in _MASKED:
        mask = torch.ones(q_BHLC.shape[2], k_BKGC.shape[2], dtype=torch.bool, device=q_BHLC.device).tril(k_BKGC.shape[2] - q_BHLC.shape[2])
    with kernels(backend):
        return functional.scaled_dot_product_attention(q_BHLC, k_BKGC, v_BKGC, attn_mask=mask, enable_gqa=grouped)


def own_context(group: Group, length: int) -> Context | None:
    """Return this rank's part of every sequence of `length` tokens, or None if ranks do not share sequences."""
    if group.context_mesh is None:
        return None
    size, rank = group.layout.context, group.context_rank
    chunk, chunks = length // (2 * size), (rank, 2 * size - 1 - rank)
    masks = (causal_lower_right(chunk, (chunks[0] + 1) * chunk), causal_lower_right(chunk, (chunks[1] + 1) * chunk))
    return Context(group.context_mesh["context"].get_group(), size, chunks, chunk, masks)


def require_context(settings: Settings, group: Group) -> None:
    """Compute attention for part of a sequence, and compare it with the definition.

    Kernels align a causal mask with the first or with the last key. torch does not say which kernel will run, so the result decides.

    Raises:
        SettingsError: The kernel of compute.attention aligns it with the first key.
    """
    if group.context_mesh is None:
        return
    dtype = torch.bfloat16 if settings.compute.precision != "fp32" else torch.float32
    generator = torch.Generator(group.device).manual_seed(1)
    width = settings.model.width // settings.model.heads
    shapes = ((settings.model.heads, 8), (settings.model.kv_heads, 32), (settings.model.kv_heads, 32))
    q, k, v = (torch.randn(1, heads, length, width, generator=generator, device=group.device, dtype=dtype) for heads, length in shapes)
    found, expected = (attend_to_last(q, k, v, causal_lower_right(8, 32), backend) for backend in (settings.compute.attention, "math"))
    if not torch.allclose(found.float(), expected.float(), atol=0.05):
        what = f"parallel.context does not work with compute.attention={settings.compute.attention} on {group.device}: wrong attention"
        raise SettingsError(what, fix="set compute.attention=math")
