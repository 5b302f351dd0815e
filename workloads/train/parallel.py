"""Distribute the model over the ranks: stages, then block by block tensor or expert parallelism, compilation, and DDP or FSDP2."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
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

from workloads.common.errors import SettingsError
from workloads.train.context import own_context
from workloads.train.float8 import convert_to_float8
from workloads.train.lora import add_lora
from workloads.train.losses import loss_function
from workloads.train.model import Transformer, materialise
from workloads.train.moe import MATRICES
from workloads.train.pipeline import Parts, Pipeline, Stage, blocks_of_stage, stages_of_rank

if TYPE_CHECKING:
    from workloads.common.process_group import Group
    from workloads.train.moe import Experts
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
    """Build the model, or this rank's stages of it, with its initial values, distributed over the ranks."""
    length = settings.train.sequence_length
    context = own_context(group, length)
    if settings.parallel.pipeline == 1:
        model = _build_part(settings, group, range(settings.model.layers))
        model.share(context, length)
        if settings.parallel.strategy == "fsdp":
            # The backward pass starts with the root's own weights.
            _shard(model, settings, group, reshard=False)
            return model
        return DistributedDataParallel(model, process_group=group.mesh["shard"].get_group(), gradient_as_bucket_view=True)
    numbers = stages_of_rank(settings, group.pipeline_rank)
    parts = [_build_part(settings, group, blocks_of_stage(settings, number)) for number in numbers]
    stages = [Stage(part, loss_function(settings)) for part in parts]
    for stage in stages:
        stage.part.share(context, length)
        _shard(stage, settings, group, reshard=False)
    own = Parts(parts)
    passes = settings.train.global_batch // (group.data_ranks * settings.train.micro_batch)
    own.pipeline = Pipeline(stages, settings, group, passes)
    return own


def _build_part(settings: Settings, group: Group, blocks: range) -> Transformer:
    """Build consecutive blocks.

    Each block is allocated, initialized and sharded before the next one, so that a rank stores its shards and one block at most.
    """
    with torch.device("meta"):
        model = Transformer(settings.model, settings.compute, blocks)
    if settings.lora.rank:
        add_lora(model, settings.lora)
    if settings.compute.precision == "fp8":
        convert_to_float8(model.blocks, settings.compute.fp8_recipe)
    for index, block in model.blocks.items():
        _materialise(block, settings, group, f"blocks.{index}")
        _split(block, settings, group)
        if settings.compute.compile:
            block.compile(backend=settings.compute.compile_backend)
        if settings.parallel.strategy == "fsdp":
            # In a pipeline, a block processes several micro-batches before its first backward pass.
            _shard(block, settings, group, reshard=settings.parallel.reshard_after_forward and settings.parallel.pipeline == 1)
    plan = {}
    for name in ("embedding", "norm", "output"):
        if getattr(model, name) is not None:
            _materialise(model.get_submodule(name), settings, group, name)
            plan[name] = _ROOT_PLAN[name]
    if settings.parallel.tensor > 1:
        parallelize_module(model, group.mesh["tensor"], plan)
    return model


def _materialise(module: nn.Module, settings: Settings, group: Group, name: str) -> None:
    materialise(module, group.device, seed=settings.train.seed, name=name, layers=settings.model.layers)


def _split(block: nn.Module, settings: Settings, group: Group) -> None:
    """Split the matrices of a block, or its experts, over the ranks that share them."""
    if settings.parallel.tensor > 1:
        parallelize_module(block, group.mesh["tensor"], _BLOCK_PLAN)
    if group.expert_mesh is not None:
        experts, mesh = cast("Experts", block.get_submodule("ffn")), group.expert_mesh["expert"]
        experts.ranks = mesh.get_group()
        for name in MATRICES:
            own = experts.get_parameter(name).detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
            experts.register_parameter(name, nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)], run_check=False)))
        reshard = settings.parallel.reshard_after_forward and settings.parallel.pipeline == 1
        # The ranks that have the same experts share their matrices along the second dimension; the first is that of the experts.
        _shard(experts.router, settings, group, reshard=reshard)
        fully_shard(
            experts,
            mesh=group.expert_mesh["copy"],
            mp_policy=_precision(settings),
            reshard_after_forward=reshard,
            shard_placement_fn=lambda _: Shard(1),
        )


def _precision(settings: Settings) -> MixedPrecisionPolicy:
    # Arithmetic in bf16; gradients are summed over the ranks in fp32. Inputs of a block are not cast: activations are bf16 already, and
    # rotary angles in bf16 (8 bits of precision) would be wrong by whole radians from position 512.
    bf16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    return bf16 if settings.compute.precision != "fp32" else MixedPrecisionPolicy()


def _shard(module: nn.Module, settings: Settings, group: Group, *, reshard: bool) -> None:
    fully_shard(module, mesh=group.mesh["shard"], mp_policy=_precision(settings), reshard_after_forward=reshard)


def gradient_sync(model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
    """Return the context of one micro-batch: DDP exchanges gradients only in the last micro-batch of a step.

    FSDP exchanges them in each micro-batch: storing the whole gradient on every rank would use the memory that sharding saves.
    """
    if isinstance(model, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[object]", model.no_sync())
    return nullcontext()


def arithmetic(settings: Settings, group: Group, model: nn.Module) -> AbstractContextManager[object]:
    """Return the context of forward passes: autocast to bf16, unless FSDP casts."""
    if settings.compute.precision != "fp32" and not isinstance(model, FSDPModule):
        return torch.autocast(group.device.type, torch.bfloat16)
    return nullcontext()


def split_loss(settings: Settings) -> AbstractContextManager[object]:
    """Return the context of loss and backward pass: with tensor parallelism, each rank has a part of the vocabulary."""
    return cast("AbstractContextManager[object]", loss_parallel()) if settings.parallel.tensor > 1 else nullcontext()


def require_peer_access(device: torch.device) -> None:
    """Check that GPUs can read each other's memory, which parallel.async_tensor needs.

    Raises:
        SettingsError: They cannot.
    """
    peers = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    if len(peers) < 2 or not all(torch.cuda.can_device_access_peer(device, peer) for peer in peers if peer != device.index):
        raise SettingsError(
            f"parallel.async_tensor does not work on {device}: it needs GPUs of one host that can read each other's memory",
            fix="set parallel.async_tensor=false",
        )
