"""Low-rank adaptation: train two small matrices beside each chosen matrix, which stays as it is (LoRA, arXiv:2106.09685, section 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.train.settings import LoraSettings

_ADDED = ("lora_a", "lora_b")


class LoraLinear(nn.Linear):
    """A matrix W with a trained addition: y = x W' + x A' B' scale. B is zero at first, so that training starts from W."""

    def __init__(self, linear: nn.Linear, settings: LoraSettings) -> None:
        """Create the matrices; shapes: lora_a (rank, in), lora_b (out, rank)."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.scale = settings.alpha / settings.rank
        self.lora_a = nn.Parameter(torch.empty(settings.rank, linear.in_features, device="meta"))
        self.lora_b = nn.Parameter(torch.empty(linear.out_features, settings.rank, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both products."""
        added = functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        return functional.linear(x, self.weight) + self.scale * added


def add_lora(model: nn.Module, settings: LoraSettings) -> None:
    """Replace the chosen matrices of every block, on the meta device, and freeze everything else."""
    model.requires_grad_(False)  # noqa: FBT003 - torch's signature
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.partition(".")[2].partition(".")[2] in settings.targets:
            parent, _, last = name.rpartition(".")
            replaced = LoraLinear(module, settings)
            replaced.weight.requires_grad_(False)  # noqa: FBT003 - torch's signature
            setattr(model.get_submodule(parent), last, replaced)


def is_added(name: str) -> bool:
    """Return whether a parameter is an addition, which weights from elsewhere do not have."""
    return name.endswith(_ADDED)


def merged(name: str, state: Mapping[str, Tensor], scale: float) -> Tensor:
    """Return a whole tensor with its addition. With FSDP, all ranks must call it."""
    weight = _whole(state[name])
    prefix = name.removesuffix("weight")
    if f"{prefix}lora_a" not in state:
        return weight
    return weight + scale * _whole(state[f"{prefix}lora_b"]) @ _whole(state[f"{prefix}lora_a"])


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
