"""Bind a rank to the CPUs and memory of its GPU's NUMA node, read from sysfs, then execute the program in the arguments."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.detect import gpus as gpu_list
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.detect.gpus import GpuFindings

# linux/mempolicy.h, set_mempolicy(2): preferred, so that the kernel allocates on another node if this one is full.
_MPOL_PREFERRED = 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # the tables of the kernel, arch/x86/entry/syscalls and asm-generic/unistd.h
_VISIBLE = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))


def should_bind(setting: str, gpus: GpuFindings, nproc: int) -> bool:
    """Return whether to bind ranks. `auto` binds if every GPU's NUMA node is known, there are several, and the ranks use all GPUs.

    A job with some of the GPUs sees them numbered from 0 (device cgroups of Slurm and Kubernetes), while the PCI bus shows all GPUs.
    Its GPUs are then not known.

    Raises:
        PlanError: `on`, but the NUMA nodes are not known.
    """
    nodes = {gpu.numa_node for gpu in gpus.gpus}
    known = bool(nodes) and None not in nodes and nproc <= len(gpus.gpus)
    if setting == "on" and not known:
        raise PlanError("--numa: the NUMA nodes of the ranks' GPUs are not known on this host", fix="omit --numa")
    return setting == "on" or (setting == "auto" and known and len(nodes) > 1 and nproc == len(gpus.gpus))


def main(arguments: Sequence[str]) -> int:
    """Bind this process by LOCAL_RANK and execute the program in the arguments. A failed binding is only reported."""
    problem = bind(Path("/"), int(os.environ.get("LOCAL_RANK", "0")))
    if problem:
        sys.stderr.write(f"not bound to a NUMA node: {problem}\n")
    os.execvp(arguments[0], list(arguments))  # noqa: S606 - the purpose of this program


def bind(root: Path, local_rank: int) -> str:
    """Bind this process to the NUMA node of a rank's GPU; return the reason of a failure, or an empty string."""
    order = visible_gpus(len(gpu_list.find_gpus(sysfs.Host(root)).gpus))
    found = gpu_list.find_gpus(sysfs.Host(root)).gpus
    if local_rank >= len(order):
        return f"rank {local_rank} of this node has no GPU"
    node = found[order[local_rank]].numa_node
    if node is None:
        return f"the NUMA node of {found[order[local_rank]].address} is not known"
    cpus = parse_cpus(sysfs.read_text(root / f"sys/devices/system/node/node{node}/cpulist") or "")
    allowed = cpus & os.sched_getaffinity(0)
    if not allowed:
        return f"no CPU of NUMA node {node} is allowed to this process"
    os.sched_setaffinity(0, allowed)
    _prefer_memory(node)
    return ""


def visible_gpus(count: int) -> tuple[int, ...]:
    """Return the indices of the GPUs that ranks see, in their order. A variable with names (GPU-...) is ignored."""
    order = tuple(range(count))
    # ROCr filters first, and HIP numbers the remaining GPUs. HIP reads CUDA's variable if its own is not set:
    # https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    for variables in _VISIBLE:
        text = next((os.environ[name] for name in variables if os.environ.get(name)), "")
        items = [item.strip() for item in text.split(",") if item.strip()]
        if items and all(item.isdecimal() and int(item) < len(order) for item in items):
            order = tuple(order[int(item)] for item in items)
    return order


def parse_cpus(text: str) -> set[int]:
    """Return the numbers in a kernel CPU list like `0-3,8`."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _prefer_memory(node: int) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return
    mask = ctypes.c_ulong(1 << node)
    ctypes.CDLL(None).syscall(number, _MPOL_PREFERRED, ctypes.byref(mask), ctypes.sizeof(mask) * 8 + 1)
