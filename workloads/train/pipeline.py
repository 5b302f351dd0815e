"""Pipeline parallelism: each rank has some of the blocks, and micro-batches pass through the ranks, with torch's schedules.

Schedules: 1F1B, and interleaved 1F1B if a rank has several groups of blocks (Megatron-LM, arXiv:2104.04473, section 2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from workloads.common.torch_release import step_pipeline
from workloads.train.losses import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workloads.common.process_group import Group
    from workloads.train.data import Batch
    from workloads.train.model import Transformer
    from workloads.train.settings import Settings


def stages_of_rank(settings: Settings, rank: int) -> list[int]:
    """Return the numbers of the stages of a rank of the pipeline: every `pipeline`-th one."""
    parallel = settings.parallel
    return list(range(rank, parallel.pipeline * parallel.virtual_pipeline, parallel.pipeline))


def blocks_of_stage(settings: Settings, stage: int) -> range:
    """Return the blocks of a stage. If they cannot be equal, the first stages have one more: the last one also has the output matrix."""
    stages = settings.parallel.pipeline * settings.parallel.virtual_pipeline
    size, more = divmod(settings.model.layers, stages)
    start = stage * size + min(stage, more)
    return range(start, start + size + (stage < more))


class Stage(nn.Module):
    """The blocks of a stage. Its output is the vectors, or after the last block the sum of losses; with experts, also the balance loss."""

    def __init__(self, part: Transformer, loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Wrap a part of the model; `loss_of` returns the sum of the losses of logits and targets."""
        super().__init__()
        self.part, self.loss_of = part, loss_of
        self.has_experts = part.settings.experts > 0

    def forward(self, x: Tensor, before: Tensor | None = None, *, targets_BL: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output; `before` is the balance loss of the stages before."""
        y: Tensor
        balance: Tensor
        y, balance = self.part(x)
        if self.part.output is not None:
            y = self.loss_of(y, targets_BL).reshape(1)
        if not self.has_experts:
            return y
        return y, balance.reshape(1) + before if before is not None else balance.reshape(1)


class Parts(nn.Module):
    """The parameters of this rank's stages, with the same names as in the whole model, so that a checkpoint is of no particular layout."""

    def __init__(self, parts: Sequence[Transformer]) -> None:
        """Collect the modules of the parts."""
        super().__init__()
        self.embedding = next((part.embedding for part in parts if part.embedding is not None), None)
        self.blocks = nn.ModuleDict({name: block for part in parts for name, block in part.blocks.items()})
        self.norm = next((part.norm for part in parts if part.norm is not None), None)
        self.output = next((part.output for part in parts if part.output is not None), None)
        self.pipeline: Pipeline | None = None


class Pipeline:
    """The schedule of this rank."""

    def __init__(self, stages: Sequence[Stage], settings: Settings, group: Group, micro_batches: int) -> None:
        """Create the schedule; all ranks of the pipeline must call it together."""
        self._weight = settings.model.balance_weight / micro_batches if settings.model.experts else 0.0
        self._micro_batches, self._ranks = micro_batches, group.shard_ranks
        self._targets = torch.ones((), device=group.device)
        self._loss = self._balance = torch.zeros((), device=group.device)
        numbers = stages_of_rank(settings, group.pipeline_rank)
        self._is_first = 0 in numbers
        made = [_pipeline_stage(stage, number, settings, group) for stage, number in zip(stages, numbers, strict=True)]
        options: dict[str, Any] = {"n_microbatches": micro_batches, "loss_fn": self._total, "scale_grads": False}
        self._schedule: Any = Schedule1F1B(made[0], **options) if len(made) == 1 else ScheduleInterleaved1F1B(list(made), **options)

    def step(self, batches: Sequence[Batch], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Run forward and backward; return this rank's share of the loss and its balance loss, 0 except on the last rank.

        `targets` is the number of target tokens of the global batch.
        """
        device = targets.device
        self._targets = targets
        self._loss, self._balance = torch.zeros((), device=device), torch.zeros((), device=device)
        tokens_BL = torch.cat([batch.tokens_BL for batch in batches])
        targets_BL = torch.cat([batch.targets_BL for batch in batches])
        inputs = (tokens_BL,) if self._is_first else ()
        step_pipeline(self._schedule, *inputs, target=targets_BL, targets_BL=targets_BL)
        return self._loss, self._balance

    def _total(self, output: Tensor | tuple[Tensor, Tensor], _targets: Tensor) -> Tensor:
        """Return the loss of a micro-batch, whose gradients the ranks average, and record its parts."""
        summed, balance = output if isinstance(output, tuple) else (output, None)
        share = summed.sum() / self._targets.clamp(min=1)
        self._loss = self._loss + whole(share.detach())
        if balance is None:
            return share * self._ranks
        self._balance = self._balance + balance.detach().sum() / self._micro_batches
        return share * self._ranks + balance.sum() * self._weight


def _pipeline_stage(stage: Stage, number: int, settings: Settings, group: Group) -> PipelineStage:
    """Return torch's stage. The shapes of inputs and outputs are given, so that no first pass has to find them out."""
    compute, train = settings.compute, settings.train
    dtype = torch.bfloat16 if compute.precision != "fp32" else torch.float32
    length = train.sequence_length // settings.parallel.context
    tokens_BL = torch.zeros(train.micro_batch, length, dtype=torch.int64, device="meta")
    vectors = torch.zeros(train.micro_batch, length // settings.parallel.tensor, settings.model.width, dtype=dtype, device="meta")
    one = torch.zeros(1, device="meta")
    between = (vectors, one) if stage.has_experts else (vectors,)
    inputs = (tokens_BL,) if number == 0 else tuple(tensor.clone().requires_grad_() for tensor in between)
    last = (one, one) if stage.has_experts else (one,)
    outputs = tuple(tensor.clone().requires_grad_() for tensor in (last if stage.part.output is not None else between))
    stages = settings.parallel.pipeline * settings.parallel.virtual_pipeline
    ranks = group.mesh["pipeline"].get_group()
    return PipelineStage(stage, number, stages, group.device, input_args=inputs, output_args=outputs, group=ranks)
