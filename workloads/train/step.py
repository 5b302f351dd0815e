"""The arithmetic of one optimizer step, and its statistics over all ranks.

The loss is the mean over all target tokens of the global batch: each rank divides by the number of tokens of all ranks. DDP and FSDP
average gradients over the data ranks, so each rank first multiplies its share by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from workloads.train.data import IGNORED
from workloads.train.parallel import arithmetic, gradient_sync, split_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

    from workloads.common.process_group import Group
    from workloads.train.data import Batch
    from workloads.train.settings import Settings


@dataclass(frozen=True, slots=True)
class Gradients:
    """The result of the backward passes: this rank's share of the loss, the balance loss, and the norm of the whole gradient."""

    loss: Tensor
    balance_loss: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True)
class LocalStats:
    """The statistics of a step on one rank."""

    stop_asked: bool
    checkpoints_exhausted: bool
    data_wait_s: float
    memory_peak_gib: float


@dataclass(frozen=True, slots=True)
class GlobalStats:
    """The statistics of a step over all ranks: losses are summed, the others are maxima. `bad_rank` is the first with a non-finite loss."""

    loss: float
    balance_loss: float
    grad_norm: float
    bad_rank: int | None
    stop_asked: bool
    checkpoints_exhausted: bool
    data_wait_s: float
    memory_peak_gib: float


def make_optimizer(model: nn.Module, settings: Settings, device: torch.device) -> Optimizer:
    """Create AdamW with weight decay for matrices only."""
    optimizer = settings.optimizer
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() > 1]
    vectors = [parameter for parameter in trained if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": optimizer.weight_decay}]
    if vectors:
        groups.append({"params": vectors, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups, lr=optimizer.lr, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps, fused=device.type == "cuda"
    )


def compute_gradients(model: nn.Module, batches: Sequence[Batch], settings: Settings, group: Group) -> Gradients:
    """Run forward and backward over the micro-batches of a step."""
    batches = [batch.to(group.device) for batch in batches]
    targets = torch.stack([(batch.targets_BL != IGNORED).sum() for batch in batches]).sum()
    dist.all_reduce(targets, group=group.mesh["data"].get_group())
    loss, balance = torch.zeros((), device=group.device), torch.zeros((), device=group.device)
    loss_of = _loss_function(settings)
    for index, batch in enumerate(batches):
        with gradient_sync(model, last=index == len(batches) - 1), split_loss(settings):
            with arithmetic(settings, group, model):
                logits_BLV, balance_part = model(batch.tokens_BL)
            share = loss_of(logits_BLV, batch.targets_BL) / targets.clamp(min=1)
            total = share * group.data_ranks
            if settings.model.experts:
                total = total + balance_part * (settings.model.balance_weight / len(batches))
            torch.autograd.backward(total)
        loss += whole(share.detach())
        balance += balance_part.detach() / len(batches)
    parameters = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return Gradients(loss, balance, get_total_norm(parameters))


def sum_of_losses(logits_BLV: Tensor, targets_BL: Tensor) -> Tensor:
    """Return the sum of the losses of all target tokens, computed in fp32."""
    return functional.cross_entropy(logits_BLV.flatten(0, 1).float(), targets_BL.flatten(), ignore_index=IGNORED, reduction="sum")


def _loss_function(settings: Settings) -> Callable[[Tensor, Tensor], Tensor]:
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


def reduce_stats(gradients: Gradients, local: LocalStats, group: Group) -> GlobalStats:
    """Reduce the step's statistics over all ranks with two small collectives and one synchronization of the device."""
    copies = group.world_size // group.data_ranks
    sums = torch.stack((gradients.loss, gradients.balance_loss)).double()
    # The first bad rank has the largest `ranks - rank`, so one MAX is sufficient.
    bad = (~torch.isfinite(gradients.loss)).double() * (group.world_size - group.rank)
    own = torch.tensor((local.stop_asked, local.checkpoints_exhausted, local.data_wait_s, local.memory_peak_gib), dtype=torch.float64)
    largest = torch.cat((bad.reshape(1), own.to(group.device)))
    dist.all_reduce(sums)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    loss, balance_loss = (sums / torch.tensor((copies, group.world_size), device=group.device)).tolist()
    bad_mark, stop, exhausted, data_wait_s, memory_gib = largest.tolist()
    return GlobalStats(
        loss=loss,
        balance_loss=balance_loss,
        grad_norm=float(whole(gradients.norm)),
        bad_rank=group.world_size - int(bad_mark) if bad_mark else None,
        stop_asked=bool(stop),
        checkpoints_exhausted=bool(exhausted),
        data_wait_s=data_wait_s,
        memory_peak_gib=memory_gib,
    )


def apply_gradients(model: nn.Module, optimizer: Optimizer, gradients: Gradients, *, rate: float, clip_norm: float) -> None:
    """Clip the gradient by its norm and update the weights."""
    if clip_norm:
        clip_grads_with_norm_(list(model.parameters()), clip_norm, whole(gradients.norm))
    for part in optimizer.param_groups:
        part["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
