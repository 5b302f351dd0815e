"""Mixture of experts: a router sends each token to some of the feed-forward networks.

Shapes: B batch, L sequence, D width, N = B x L tokens, E experts, S experts per token, M = N x S rows (a token per expert that processes
it), R rows that this rank's experts receive, F inner width of an expert. With expert parallelism, the matrices have this rank's E only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from workloads.common.torch_release import can_group_products, grouped_product

if TYPE_CHECKING:
    from workloads.train.settings import ModelSettings

MATRICES = ("gate_EDF", "up_EDF", "down_EFD")
"""The parameters that expert parallelism splits."""


class Experts(nn.Module):
    """SwiGLU experts with a softmax router; no token is dropped. `ranks` share the experts; None if each rank has all of them."""

    def __init__(self, model: ModelSettings) -> None:
        """Create the router, and one tensor per matrix for all experts, so that FSDP shards across experts."""
        super().__init__()
        self.per_token = model.experts_per_token
        self.ranks: dist.ProcessGroup | None = None
        self.router = nn.Linear(model.width, model.experts, bias=False)
        self.gate_EDF = nn.Parameter(torch.empty(model.experts, model.width, model.ffn_width))
        self.up_EDF = nn.Parameter(torch.empty(model.experts, model.width, model.ffn_width))
        self.down_EFD = nn.Parameter(torch.empty(model.experts, model.ffn_width, model.width))

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's weighted sum over its experts, and the balance loss."""
        x_ND = x_BLD.flatten(0, 1)
        share_NE = functional.softmax(self.router(x_ND).float(), dim=-1)
        weight_NS, chosen_NS = share_NE.topk(self.per_token, dim=-1)
        weight_NS = weight_NS / weight_NS.sum(dim=-1, keepdim=True)
        chosen_M = chosen_NS.flatten()
        order_M = chosen_M.argsort(stable=True)
        rows_E = chosen_M.new_zeros(share_NE.shape[1]).scatter_add_(0, chosen_M, torch.ones_like(chosen_M))
        x_MD = x_ND[order_M // self.per_token]
        y_MD = self._on_all_ranks(x_MD, rows_E) if self.ranks else self._products(x_MD, rows_E)
        y_NSD = y_MD[order_M.argsort()].to(x_ND.dtype).view(*chosen_NS.shape, -1)
        y_ND = (y_NSD * weight_NS.unsqueeze(-1).to(x_ND.dtype)).sum(dim=1)
        return y_ND.view_as(x_BLD), balance_loss(share_NE, chosen_NS)

    def _products(self, x_RD: Tensor, rows_E: Tensor) -> Tensor:
        """Return the results of rows that are sorted by expert."""
        gate_EDF, up_EDF, down_EFD = (_own(self.get_parameter(name)) for name in MATRICES)
        kind = x_RD.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else gate_EDF.dtype
        x_RD, gate_EDF, up_EDF, down_EFD = (tensor.to(dtype) for tensor in (x_RD, gate_EDF, up_EDF, down_EFD))
        if can_group_products(x_RD, gate_EDF):
            ends_E = rows_E.cumsum(0).to(torch.int32)
            h_RF = functional.silu(grouped_product(x_RD, gate_EDF, ends_E)) * grouped_product(x_RD, up_EDF, ends_E)
            return grouped_product(h_RF, down_EFD, ends_E)
        parts = torch.split(x_RD, rows_E.tolist())
        return torch.cat([(functional.silu(x @ gate_EDF[e]) * (x @ up_EDF[e])) @ down_EFD[e] for e, x in enumerate(parts)])

    def _on_all_ranks(self, x_MD: Tensor, rows_E: Tensor) -> Tensor:
        """Send each row to the rank of its expert, and return the results, in the order of the rows."""
        size = dist.get_world_size(self.ranks)
        received = torch.empty_like(rows_E)
        dist.all_to_all_single(received, rows_E, group=self.ranks)
        received = received.view(size, -1)  # rows per source and own expert
        sent = rows_E.view(size, -1).sum(dim=1).tolist()
        arriving = received.sum(dim=1).tolist()
        x_RD: Tensor = _Exchange.apply(x_MD, sent, arriving, self.ranks)  # type: ignore[no-untyped-call]
        expert_R = torch.arange(received.shape[1], device=x_MD.device).repeat(size).repeat_interleave(received.flatten())
        order_R = expert_R.argsort(stable=True)
        y_RD = self._products(x_RD[order_R], received.sum(dim=0))[order_R.argsort()]
        y_MD: Tensor = _Exchange.apply(y_RD, arriving, sent, self.ranks)  # type: ignore[no-untyped-call]
        return y_MD


class _Exchange(torch.autograd.Function):
    """Send `sent[r]` rows to each rank r, and receive `arriving[r]` from it; backward sends the gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], arriving: list[int], ranks: dist.ProcessGroup) -> Tensor:
        ctx.counts, ctx.ranks = (sent, arriving), ranks
        return _exchange(rows, sent, arriving, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sent, arriving = ctx.counts
        return _exchange(gradient, arriving, sent, ctx.ranks), None, None, None


def _exchange(rows: Tensor, sent: list[int], arriving: list[int], ranks: dist.ProcessGroup) -> Tensor:
    result = rows.new_empty(sum(arriving), *rows.shape[1:])
    dist.all_to_all_single(result, rows.contiguous(), arriving, sent, group=ranks)
    return result


def _own(matrix: Tensor) -> Tensor:
    return matrix.to_local() if isinstance(matrix, DTensor) else matrix


def balance_loss(share_NE: Tensor, chosen_NS: Tensor) -> Tensor:
    """Return E x sum of (fraction of tokens sent) x (mean share): 1 when even (Switch Transformers, arXiv:2101.03961, equations 4 to 6)."""
    experts = share_NE.shape[1]
    fraction_E = functional.one_hot(chosen_NS, experts).float().mean(dim=(0, 1))
    return experts * (fraction_E * share_NE.mean(dim=0)).sum()
