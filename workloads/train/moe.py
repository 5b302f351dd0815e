"""Mixture of experts: a router sends each token to some of the feed-forward networks.

Shapes: B batch, L sequence, D width, N = B x L tokens, E experts, S experts per token, F inner width of an expert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from workloads.train.settings import ModelSettings


class Experts(nn.Module):
    """SwiGLU experts with a softmax router; no token is dropped."""

    def __init__(self, model: ModelSettings) -> None:
        """Create the router, and one tensor per matrix for all experts, so that FSDP shards across experts."""
        super().__init__()
        self.per_token = model.experts_per_token
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
        y_ND = torch.zeros_like(x_ND)
        for expert in range(share_NE.shape[1]):
            token, slot = torch.where(chosen_NS == expert)
            h_tD = self._expert(expert, x_ND[token]) * weight_NS[token, slot].unsqueeze(-1).to(x_ND.dtype)
            y_ND = y_ND.index_add(0, token, h_tD.to(x_ND.dtype))
        return y_ND.view_as(x_BLD), balance_loss(share_NE, chosen_NS)

    def _expert(self, expert: int, x_tD: Tensor) -> Tensor:
        gate_tF = functional.silu(x_tD @ self.gate_EDF[expert])
        return (gate_tF * (x_tD @ self.up_EDF[expert])) @ self.down_EFD[expert]


def balance_loss(share_NE: Tensor, chosen_NS: Tensor) -> Tensor:
    """Return E x sum of (fraction of tokens sent) x (mean share): 1 when even (Switch Transformers, arXiv:2101.03961, equations 4 to 6)."""
    experts = share_NE.shape[1]
    fraction_E = functional.one_hot(chosen_NS, experts).float().mean(dim=(0, 1))
    return experts * (fraction_E * share_NE.mean(dim=0)).sum()
