"""Properties of a device: name, serial number, cache size, peak memory."""

from __future__ import annotations

import platform
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

GIB = 2**30
_CACHE = "/sys/devices/system/cpu/cpu0/cache/index3/size"
# Twice the largest last-level cache of a GPU: the Infinity Cache of MI300X, 256 MB
# (https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html). torch knows the L2 cache only, which is smaller.
_COLD_GPU_BYTES = 512 * 2**20
_COLD_CPU_BYTES = 64 * 2**20
_COLD_CPU_LIMIT_BYTES = 2**30


def device_name(device: torch.device) -> str:
    """Return the device's name as torch reports it, or `CPU` with the processor type."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"


def device_model(device: torch.device) -> str:
    """Return the device's name as torch reports it, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_serial(device: torch.device) -> str:
    """Return the device's UUID, or its PCI address if torch reports no UUID; "" for a CPU."""
    if device.type != "cuda":
        return ""
    properties: Any = torch.cuda.get_device_properties(device)  # the type lacks attributes of torch 2.4 and later
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        return uuid_text(str(uuid))
    return f"pci-{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"


def uuid_text(uuid: str) -> str:
    """Return a UUID in the notation of the vendor's tools. HIP stores the 16 letters of AMD's unique id in its 16 bytes."""
    with suppress(ValueError):
        letters = bytes.fromhex(uuid.replace("-", "")).decode("ascii")
        if len(letters) == 16 and all(letter in "0123456789abcdef" for letter in letters.lower()):
            return letters.lower()
    return uuid


def cold_bytes(device: torch.device) -> int:
    """Return a size in bytes that exceeds the device's last-level cache, so that operands of that total size are not cached."""
    if device.type == "cuda":
        return _COLD_GPU_BYTES
    with suppress(OSError, ValueError):
        return min(_COLD_CPU_LIMIT_BYTES, 2 * 1024 * int(Path(_CACHE).read_text("ascii").strip().removesuffix("K")))
    return _COLD_CPU_BYTES


def compute_units(device: torch.device) -> int:
    """Return the number of compute units (AMD) or multiprocessors (NVIDIA) available to this process; 0 for a CPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 0


def peak_memory_gib(device: torch.device) -> float:
    """Return this process's peak memory: allocated on the GPU, or resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    # ru_maxrss is in KiB on Linux: getrusage(2).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def synchronise(device: torch.device) -> None:
    """Wait until the device has completed its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
