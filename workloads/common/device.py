"""What the device is and what it holds."""

from __future__ import annotations

import platform
import resource

import torch

GIB = 2**30


def device_name(device: torch.device) -> str:
    """Return the device's name as its driver says it, or the machine's processor type."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"


def compute_units(device: torch.device) -> int:
    """Return the number of compute units (AMD) or multiprocessors (NVIDIA) that this process may use; 0 for a CPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 0


def peak_memory_gib(device: torch.device) -> float:
    """Return the most memory that this process has held at once: allocated on the GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    # ru_maxrss is in KiB on Linux: getrusage(2).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
