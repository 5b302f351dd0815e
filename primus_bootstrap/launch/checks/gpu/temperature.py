"""Is any GPU or its memory as hot as its own limit? The limit is the device's, never a number of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, CannotTellError, Check, judged, listed, number_of, skipped, unknown
from primus_bootstrap.launch.checks.vendors import each_gpu
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "hwmon tempN_crit, https://docs.kernel.org/gpu/amdgpu/thermal.html"
_NVIDIA = "nvidia-smi -q -d TEMPERATURE: the slowdown threshold, or T.Limit (degrees that are left)"
_FIX = "look at fans, air flow and dust; the GPU lowers its clocks to protect itself"


def _amd(node: Node, gpu: Gpu) -> Verdict:
    folder = node.pci(gpu.address) / "hwmon"
    monitors = listed(folder)
    if not monitors:
        if gpu.virtual:
            return skipped("a virtual function shows no temperature", device=gpu.address)
        raise CannotTellError("the driver shows no temperature", fix="see `dmesg | grep amdgpu`")
    readings: list[tuple[float, float, str]] = []
    for name in listed(folder / monitors[0]):
        if name.startswith("temp") and name.endswith("_input"):
            sensor = folder / monitors[0] / name[: -len("_input")]
            critical = sysfs.read_int(sensor.with_name(f"{sensor.name}_crit"))
            if critical:
                label = sysfs.read_text(sensor.with_name(f"{sensor.name}_label")) or sensor.name
                readings.append((number_of(folder / monitors[0] / name) / 1000, critical / 1000, label))
    if not readings:
        raise CannotTellError("the driver shows no sensor with a limit of its own")
    now, most, label = min(readings, key=lambda reading: reading[1] - reading[0])
    return _record(gpu.address, "", now, most, label, _AMD)


def _nvidia(one: nvidia.Smi) -> Verdict:
    fields = {"device": one.address, "serial": one.serial, "source": _NVIDIA}
    try:
        now = one.number("temperature/gpu_temp")
        left = one.number("temperature/gpu_temp_tlimit") if one.element.find("temperature/gpu_temp_tlimit") is not None else None
        slow = one.number("temperature/gpu_temp_slow_threshold") if left is None else None
    except CannotTellError as error:
        return unknown(error.reason, fix=error.fix, **fields)
    if now is None or (left is None and slow is None):
        return unknown("the driver shows no temperature with a limit of the GPU's own", **fields)
    most = now + left if left is not None else slow or 0.0
    return _record(one.address, one.serial, now, most, "GPU", _NVIDIA)


def _record(device: str, serial: str, now: float, most: float, label: str, source: str) -> Verdict:  # noqa: PLR0913, PLR0917
    fields = {"device": device, "serial": serial, "expected": f"< {most:g}", "found": f"{now:g}", "unit": "°C", "source": source}
    return judged(good=now < most, reason=f"{label}: at its limit of {most:g} °C", fix=_FIX, **fields)


CHECK = Check(
    "gpu_temperature",
    "Every GPU and its memory is below the temperature at which it lowers its clocks.",
    "AMD: hwmon in sysfs; NVIDIA: nvidia-smi",
    each_gpu(_amd, _nvidia, amd_source=_AMD),
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
