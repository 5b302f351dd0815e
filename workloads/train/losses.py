"""The loss of a batch. Shapes: B batch, L sequence, V vocabulary."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

from workloads.train.data import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from workloads.train.settings import Settings


def sum_of_losses(logits_BLV: Tensor, targets_BL: Tensor) -> Tensor:
    """Return the sum of the losses of all target tokens, computed in fp32."""
    return functional.cross_entropy(logits_BLV.flatten(0, 1).float(), targets_BL.flatten(), ignore_index=IGNORED, reduction="sum")


def loss_function(settings: Settings) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `sum_of_losses`, compiled if the blocks are compiled, which avoids an fp32 copy of the logits. Sharded logits stay eager."""
    compute = settings.compute
    return _compiled_loss(compute.compile_backend) if compute.compile and settings.parallel.tensor == 1 else sum_of_losses


@cache
def _compiled_loss(backend: str) -> Callable[[Tensor, Tensor], Tensor]:
    compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(sum_of_losses, backend=backend)
    return compiled


def whole(value: Tensor) -> Tensor:
    """Return the full value of a sharded tensor."""
    return value.full_tensor() if isinstance(value, DTensor) else value
