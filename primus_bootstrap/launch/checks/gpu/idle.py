"""Check that the memory of every GPU is free. Processes left over from an earlier job make the next job fail or run slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import GPU, Check, Node, pass_or_fail, unknown
from primus_bootstrap.launch.checks.vendors import check_each_gpu
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_GIB = 2**30
_MIB = 2**20
_FIX = "list the processes (amd-smi process, nvidia-smi, fuser /dev/kfd /dev/nvidia*) and end those that are left over"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    used = sysfs.read_int(node.pci(gpu.address) / "mem_info_vram_used")
    return _verdict(gpu.address, "", None if used is None else used / _GIB)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    mib = one.number("fb_memory_usage/used")
    return _verdict(one.address, one.serial, None if mib is None else mib * _MIB / _GIB)


def _verdict(device: str, serial: str, used_gib: float | None) -> Verdict:
    most = limit("gpu_memory_in_use_gib")
    fields = {"device": device, "serial": serial, "expected": f"<= {most.value:g}", "unit": "GiB", "source": most.source}
    if used_gib is None:
        return unknown("the driver does not report the memory in use", fix="see preflight_gpu_driver", **fields)
    return pass_or_fail(good=used_gib <= most.value, reason="GPU memory is in use", fix=_FIX, found=f"{used_gib:.2f}", **fields)


CHECK = Check(
    "gpu_idle",
    "No process uses GPU memory.",
    "AMD: mem_info_vram_used in sysfs; NVIDIA: nvidia-smi",
    check_each_gpu(_amd, _nvidia),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
