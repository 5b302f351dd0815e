"""Check that no GPU or its memory has reached the temperature limit that the device itself reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, list_names, pass_or_fail, require_number, skipped
from primus_bootstrap.launch.checks.vendors import check_each_gpu
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "hwmon tempN_crit, https://docs.kernel.org/gpu/amdgpu/thermal.html"
_NVIDIA = "nvidia-smi -q -d TEMPERATURE: the slowdown threshold, or T.Limit (degrees below the limit)"
_FIX = "check fans, air flow and dust; at its limit a GPU lowers its clocks"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    folder = node.pci(gpu.address) / "hwmon"
    monitors = list_names(folder)
    if not monitors:
        if gpu.virtual:
            return skipped("a virtual function reports no temperature", device=gpu.address)
        raise UnavailableError("the driver reports no temperature", fix="see `dmesg | grep amdgpu`")
    sensors: list[tuple[float, float, str]] = []
    for name in list_names(folder / monitors[0]):
        if name.startswith("temp") and name.endswith("_input"):
            sensor = folder / monitors[0] / name[: -len("_input")]
            critical = sysfs.read_int(sensor.with_name(f"{sensor.name}_crit"))
            if critical:
                label = sysfs.read_text(sensor.with_name(f"{sensor.name}_label")) or sensor.name
                sensors.append((require_number(folder / monitors[0] / name) / 1000, critical / 1000, label))
    if not sensors:
        raise UnavailableError("the driver reports no sensor with a limit")
    now, most, label = min(sensors, key=lambda sensor: sensor[1] - sensor[0])
    return _verdict(gpu.address, "", now, most, label, _AMD)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    now = one.number("temperature/gpu_temp")
    left = one.number("temperature/gpu_temp_tlimit") if one.element.find("temperature/gpu_temp_tlimit") is not None else None
    slow = one.number("temperature/gpu_temp_slow_threshold") if left is None else None
    if now is None or (left is None and slow is None):
        raise UnavailableError("the driver reports no temperature with a limit")
    most = now + left if left is not None else slow or 0.0
    return _verdict(one.address, one.serial, now, most, "GPU", _NVIDIA)


def _verdict(device: str, serial: str, now: float, most: float, label: str, source: str) -> Verdict:  # noqa: PLR0913, PLR0917
    fields = {"device": device, "serial": serial, "expected": f"< {most:g}", "found": f"{now:g}", "unit": "°C", "source": source}
    return pass_or_fail(good=now < most, reason=f"the sensor {label} has reached its limit of {most:g} °C", fix=_FIX, **fields)


CHECK = Check(
    "gpu_temperature",
    "Every GPU and its memory are below the temperature at which the GPU lowers its clocks.",
    "AMD: hwmon in sysfs; NVIDIA: nvidia-smi",
    check_each_gpu(_amd, _nvidia, (_AMD, _NVIDIA)),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
