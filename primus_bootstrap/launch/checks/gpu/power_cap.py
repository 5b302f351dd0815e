"""Check that no GPU has a power cap below its default. A lowered cap makes a GPU slow without any other sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, list_names, pass_or_fail, require_number, skipped
from primus_bootstrap.launch.checks.vendors import check_each_gpu

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "hwmon power1_cap_default, https://docs.kernel.org/gpu/amdgpu/thermal.html"
_NVIDIA = "nvidia-smi -q -d POWER: default power limit"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    folder = node.pci(gpu.address) / "hwmon"
    monitor = next(iter(list_names(folder)), "")
    names = list_names(folder / monitor) if monitor else ()
    if gpu.virtual or (monitor and "power1_cap" not in names):
        return skipped("the driver reports no power cap for this GPU", device=gpu.address)
    cap, default = (require_number(folder / monitor / name) / 1e6 for name in ("power1_cap", "power1_cap_default"))
    return _verdict(gpu.address, "", cap, default, "amd-smi set --power-cap", _AMD)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    cap = one.number("gpu_power_readings/current_power_limit", "power_readings/power_limit")
    default = one.number("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")
    if cap is None or default is None:
        return skipped("this GPU has no adjustable power cap", device=one.address, serial=one.serial)
    return _verdict(one.address, one.serial, cap, default, "nvidia-smi -pl", _NVIDIA)


def _verdict(device: str, serial: str, cap: float, default: float, command: str, source: str) -> Verdict:  # noqa: PLR0913, PLR0917
    fields = {"device": device, "serial": serial, "expected": f">= {default:g}", "found": f"{cap:g}", "unit": "W", "source": source}
    return pass_or_fail(
        good=cap >= default, reason="the power cap is below the default", fix=f"restore the default: {command} {default:g}", **fields
    )


CHECK = Check(
    "gpu_power_cap",
    "No GPU has a power cap below its default.",
    "AMD: hwmon in sysfs; NVIDIA: nvidia-smi",
    check_each_gpu(_amd, _nvidia, (_AMD, _NVIDIA)),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
