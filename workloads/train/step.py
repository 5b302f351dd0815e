"""The arithmetic of one optimizer step, and its statistics over all ranks.

The loss is the mean over all target tokens of the global batch: each rank divides by the number of tokens of all ranks. DDP and FSDP
average gradients over the data ranks, so each rank first multiplies its share by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from workloads.common.torch_release import sums_instead_of_averaging
from workloads.train.data import IGNORED
from workloads.train.losses import loss_function, whole
from workloads.train.parallel import arithmetic, gradient_sync, split_loss
from workloads.train.pipeline import Parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
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
    matrices = by_mesh(parameter for parameter in trained if parameter.dim() > 1)
    vectors = by_mesh(parameter for parameter in trained if parameter.dim() <= 1)
    groups = [{"params": part, "weight_decay": optimizer.weight_decay} for part in matrices.values()]
    groups += [{"params": part, "weight_decay": 0.0} for part in vectors.values()]
    return torch.optim.AdamW(
        groups, lr=optimizer.lr, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps, fused=device.type == "cuda"
    )


def compute_gradients(model: nn.Module, batches: Sequence[Batch], settings: Settings, group: Group) -> Gradients:
    """Run forward and backward over the micro-batches of a step."""
    batches = [batch.to(group.device) for batch in batches]
    targets = torch.stack([(batch.targets_BL != IGNORED).sum() for batch in batches]).sum()
    dist.all_reduce(targets, group=group.mesh["shard"].get_group())
    if isinstance(model, Parts) and model.pipeline:
        with split_loss(settings):
            loss, balance = model.pipeline.step(batches, targets)
    else:
        loss, balance = _accumulate(model, batches, targets, settings, group)
    return Gradients(loss, balance, _finish_gradients(model, settings, group))


def _accumulate(model: nn.Module, batches: Sequence[Batch], targets: Tensor, settings: Settings, group: Group) -> tuple[Tensor, Tensor]:
    """Run one micro-batch after the other; return this rank's share of the loss, and the balance loss."""
    loss, balance = torch.zeros((), device=group.device), torch.zeros((), device=group.device)
    loss_of = loss_function(settings)
    for index, batch in enumerate(batches):
        with gradient_sync(model, last=index == len(batches) - 1), split_loss(settings):
            with arithmetic(settings, group, model):
                logits_BLV, balance_part = model(batch.tokens_BL)
            share = loss_of(logits_BLV, batch.targets_BL) / targets.clamp(min=1)
            total = share * group.shard_ranks
            if settings.model.experts:
                total = total + balance_part * (settings.model.balance_weight / len(batches))
            torch.autograd.backward(total)
        loss += whole(share.detach())
        balance += balance_part.detach() / len(batches)
    return loss, balance


def _finish_gradients(model: nn.Module, settings: Settings, group: Group) -> Tensor:
    """Make averages over the shard ranks of all gradients; return the norm of the whole gradient, over all stages of a pipeline."""
    parts = []
    sums = settings.parallel.strategy == "fsdp" and sums_instead_of_averaging(group.mesh["shard"].get_group(), group.device)
    for mesh, parameters in by_mesh(model.parameters()).items():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # Each expert has seen the tokens of all ranks, but FSDP has averaged over its copies only.
        of_experts = mesh is not None and "expert" in (mesh.mesh_dim_names or ())
        divisor = group.shard_ranks if sums else settings.parallel.expert if of_experts else 1
        if divisor > 1:
            torch._foreach_div_(gradients, divisor)
        parts.append(whole(get_total_norm(gradients)))
    norm = parts[0] if len(parts) == 1 else torch.stack(parts).norm()
    if settings.parallel.pipeline > 1:
        square = norm.square()
        dist.all_reduce(square, group=group.mesh["pipeline"].get_group())
        norm = square.sqrt()
    return norm


def by_mesh(parameters: Iterable[nn.Parameter]) -> dict[DeviceMesh | None, list[nn.Parameter]]:
    """Group parameters by the ranks that share them: torch's operations on several tensors take those of one group."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        data: object = parameter.data
        groups.setdefault(data.device_mesh if isinstance(data, DTensor) else None, []).append(parameter)
    return groups


def reduce_stats(gradients: Gradients, local: LocalStats, group: Group) -> GlobalStats:
    """Reduce the step's statistics over all ranks with two small collectives and one synchronization of the device."""
    copies = group.layout.tensor  # of the loss, which only the last ranks of a pipeline have
    sums = torch.stack((gradients.loss, gradients.balance_loss)).double()
    # The first bad rank has the largest `ranks - rank`, so one MAX is sufficient.
    bad = (~torch.isfinite(gradients.loss)).double() * (group.world_size - group.rank)
    own = torch.tensor((local.stop_asked, local.checkpoints_exhausted, local.data_wait_s, local.memory_peak_gib), dtype=torch.float64)
    largest = torch.cat((bad.reshape(1), own.to(group.device)))
    dist.all_reduce(sums)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    loss, balance_loss = (sums / torch.tensor((copies, copies * group.shard_ranks), device=group.device)).tolist()
    bad_mark, stop, exhausted, data_wait_s, memory_gib = largest.tolist()
    return GlobalStats(
        loss=loss,
        balance_loss=balance_loss,
        grad_norm=float(gradients.norm),
        bad_rank=group.world_size - int(bad_mark) if bad_mark else None,
        stop_asked=bool(stop),
        checkpoints_exhausted=bool(exhausted),
        data_wait_s=data_wait_s,
        memory_peak_gib=memory_gib,
    )


def apply_gradients(model: nn.Module, optimizer: Optimizer, gradients: Gradients, *, rate: float, clip_norm: float) -> None:
    """Clip the gradient by its norm and update the weights."""
    if clip_norm:
        for part in by_mesh(model.parameters()).values():
            clip_grads_with_norm_(part, clip_norm, gradients.norm)
    for options in optimizer.param_groups:
        options["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
