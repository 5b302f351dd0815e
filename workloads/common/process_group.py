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

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Group:
    """The process group of this rank. `mesh` has the dimensions `data` and `tensor`; `background` is a gloo group for other threads."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    background: dist.ProcessGroup

    @property
    def data_rank(self) -> int:
        """The index of this rank's part of a batch."""
        return self.mesh["data"].get_local_rank()

    @property
    def data_ranks(self) -> int:
        """The number of parts of a batch."""
        return self.mesh["data"].size()

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
def process_group(*, device: str, tensor: int, timeout_s: float) -> Iterator[Group]:
    """Initialize the process group, and destroy it at the end.

    Args:
        device: `auto`, `cpu` or `cuda` (also for ROCm GPUs).
        tensor: Number of ranks that share each matrix.
        timeout_s: Time limit of a collective (s).
    """
    chosen = choose_device(device)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=chosen if chosen.type == "cuda" else None)
    else:
        dist.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1, timeout=timeout)
    try:
        mesh = init_device_mesh(chosen.type, (dist.get_world_size() // tensor, tensor), mesh_dim_names=("data", "tensor"))
        background = dist.new_group(backend="gloo", timeout=timeout)
        yield Group(dist.get_rank(), dist.get_world_size(), chosen, mesh, background)
    finally:
        dist.destroy_process_group()


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
