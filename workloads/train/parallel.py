"""Distribute the model over the ranks: tensor parallelism, compilation, DDP or FSDP2, in this order, block by block."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from workloads.train.lora import add_lora
from workloads.train.model import Transformer, materialise

if TYPE_CHECKING:
    from torch import nn

    from workloads.common.process_group import Group
    from workloads.train.settings import Settings

# Activations between blocks are split along the sequence, so that norms and residuals are distributed too
# (sequence parallelism: arXiv:2205.05198, section 4.2.2).
_BLOCK_PLAN: dict[str, ParallelStyle] = {
    "attention_norm": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.output": RowwiseParallel(output_layouts=Shard(1)),
    "ffn_norm": SequenceParallel(),
    "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "ffn.gate": ColwiseParallel(),
    "ffn.up": ColwiseParallel(),
    "ffn.down": RowwiseParallel(output_layouts=Shard(1)),
}
_ROOT_PLAN: dict[str, ParallelStyle] = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}


def build_model(settings: Settings, group: Group) -> nn.Module:
    """Build the model with its initial values, distributed over the ranks.

    Each block is allocated, initialized and sharded before the next one, so that a rank stores its shards and one block at most.
    """
    with torch.device("meta"):
        model = Transformer(settings.model, settings.compute)
    if settings.lora.rank:
        add_lora(model, settings.lora)
    for index, block in enumerate(model.blocks):
        _materialise(block, settings, group, f"blocks.{index}")
        if settings.parallel.tensor > 1:
            parallelize_module(block, group.mesh["tensor"], _BLOCK_PLAN)
        if settings.compute.compile:
            block.compile(backend=settings.compute.compile_backend)
        if settings.parallel.strategy == "fsdp":
            _shard(block, settings, group, reshard=settings.parallel.reshard_after_forward)
    for name in ("embedding", "norm", "output"):
        _materialise(model.get_submodule(name), settings, group, name)
    if settings.parallel.tensor > 1:
        parallelize_module(model, group.mesh["tensor"], _ROOT_PLAN)
    if settings.parallel.strategy == "fsdp":
        # The backward pass starts with the root's own weights.
        _shard(model, settings, group, reshard=False)
        return model
    return DistributedDataParallel(model, process_group=group.mesh["data"].get_group(), gradient_as_bucket_view=True)


def _materialise(module: nn.Module, settings: Settings, group: Group, name: str) -> None:
    materialise(module, group.device, seed=settings.train.seed, name=name, layers=settings.model.layers)


def _shard(module: nn.Module, settings: Settings, group: Group, *, reshard: bool) -> None:
    # Arithmetic in bf16; gradients are summed over the ranks in fp32. Inputs of a block are not cast: activations are bf16 already, and
    # rotary angles in bf16 (8 bits of precision) would be wrong by whole radians from position 512.
    bf16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    kept = bf16 if settings.compute.precision == "bf16" else MixedPrecisionPolicy()
    fully_shard(module, mesh=group.mesh["data"], mp_policy=kept, reshard_after_forward=reshard)


def gradient_sync(model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
    """Return the context of one micro-batch: DDP exchanges gradients only in the last micro-batch of a step.

    FSDP exchanges them in each micro-batch: storing the whole gradient on every rank would use the memory that sharding saves.
    """
    if isinstance(model, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[object]", model.no_sync())
    return nullcontext()


def arithmetic(settings: Settings, group: Group, model: nn.Module) -> AbstractContextManager[object]:
    """Return the context of forward passes: autocast to bf16, unless FSDP casts."""
    if settings.compute.precision == "bf16" and not isinstance(model, FSDPModule):
        return torch.autocast(group.device.type, torch.bfloat16)
    return nullcontext()


def split_loss(settings: Settings) -> AbstractContextManager[object]:
    """Return the context of loss and backward pass: with tensor parallelism, each rank has a part of the vocabulary."""
    return cast("AbstractContextManager[object]", loss_parallel()) if settings.parallel.tensor > 1 else nullcontext()
