"""Initialize and destroy the process group: device, ranks, mesh."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from workloads.common.errors import SettingsError
from workloads.common.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Group:
    """The process group of this rank.

    Ranks are numbered by blocks, then sequence, then part of a sequence, then part of a matrix. `mesh` has the dimensions `pipeline`,
    `shard` and `tensor`; the ranks of `shard` have the same blocks and different tokens. `context_mesh` has `data` and `context` instead of
    `shard`, and `expert_mesh` has `copy` and `expert`; they are None if nothing is split this way. `background` is a gloo group for other
    threads.
    """

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    background: dist.ProcessGroup
    layout: Layout
    context_mesh: DeviceMesh | None
    expert_mesh: DeviceMesh | None

    @property
    def shard_rank(self) -> int:
        """The index of this rank among the ranks with the same blocks and different tokens."""
        return self.mesh["shard"].get_local_rank()

    @property
    def shard_ranks(self) -> int:
        """The number of ranks with the same blocks and different tokens."""
        return self.mesh["shard"].size()

    @property
    def data_rank(self) -> int:
        """The index of this rank's part of a batch."""
        return self.shard_rank // self.layout.context

    @property
    def data_ranks(self) -> int:
        """The number of parts of a batch."""
        return self.shard_ranks // self.layout.context

    @property
    def context_rank(self) -> int:
        """The index of this rank's part of each sequence."""
        return self.shard_rank % self.layout.context

    @property
    def pipeline_rank(self) -> int:
        """The index of this rank's blocks."""
        return self.mesh["pipeline"].get_local_rank()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the files and messages."""
        return self.rank == 0


def world_size() -> int:
    """Return the number of ranks that torchrun has set, or 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_rank() -> int:
    """Return the rank that torchrun has set, or 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def process_group(*, device: str, timeout_s: float, layout: Layout | None = None) -> Iterator[Group]:
    """Initialize the process group, and destroy it at the end.

    Args:
        device: `auto`, `cpu` or `cuda` (also for ROCm GPUs).
        timeout_s: Time limit of a collective (s).
        layout: How the ranks share the work; by default, each rank has other sequences.
    """
    chosen = choose_device(device)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=chosen if chosen.type == "cuda" else None)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    try:
        background = dist.new_group(backend="gloo", timeout=timeout)
        yield _group(chosen, background, layout or Layout())
    finally:
        dist.destroy_process_group()


def _group(device: torch.device, background: dist.ProcessGroup, layout: Layout) -> Group:
    ranks = dist.get_world_size()
    shard = ranks // (layout.pipeline * layout.tensor)

    def mesh(**sizes: int) -> DeviceMesh:
        return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    pipeline, tensor, context, expert = layout.pipeline, layout.tensor, layout.context, layout.expert
    return Group(
        dist.get_rank(),
        ranks,
        device,
        mesh(pipeline=pipeline, shard=shard, tensor=tensor),
        background,
        layout,
        mesh(pipeline=pipeline, data=shard // context, context=context, tensor=tensor) if context > 1 else None,
        mesh(pipeline=pipeline, copy=shard // expert, expert=expert, tensor=tensor) if expert > 1 else None,
    )


def choose_device(device: str) -> torch.device:
    """Return this process's device: the GPU with its local rank, or the CPU.

    Raises:
        SettingsError: torch sees fewer GPUs than this host has processes.
    """
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise SettingsError(
            f"local rank {local_rank} has no GPU: torch sees {count}",
            fix="start one process per GPU (--nproc-per-node), check the driver, or set compute.device=cpu (benchmark: --device cpu)",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
