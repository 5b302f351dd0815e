"""May all GPUs of the node run at the same highest clock, and does nobody hold them down?"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, CannotTellError, Check, judged, skipped, text_of, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "pp_dpm_sclk and power_dpm_force_performance_level, https://docs.kernel.org/gpu/amdgpu/thermal.html"
_NVIDIA = "nvidia-smi -q -d CLOCK: highest SM clock"
# `auto` is the driver's own; perf_determinism is a cap that AMD recommends for even speed, the same on all GPUs.
_LEVELS = ("auto", "high", "perf_determinism")
_FIX = "amd-smi reset --clocks (nvidia-smi -rgc), and see what sets the clocks at boot"


def _look(node: Node) -> Iterator[Verdict]:
    clocks: dict[str, tuple[float, str, str]] = {}
    for gpu in node.gpus_of("amd"):
        try:
            held = _held(node, gpu)
            if held is not None:
                yield held
                continue
            clocks[gpu.address] = (_amd_clock(node, gpu), "", _AMD)
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, device=gpu.address, source=_AMD)
    for one in nvidia.query(node) if node.gpus_of("nvidia") else ():
        try:
            clock = one.number("max_clocks/sm_clock")
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, device=one.address, serial=one.serial, source=_NVIDIA)
            continue
        if clock is not None:
            clocks[one.address] = (clock, one.serial, _NVIDIA)
    yield from _compared(clocks)


def _held(node: Node, gpu: Gpu) -> Verdict | None:
    """Return a record where the GPU has no clocks to set or somebody holds them, None where its clock is to be compared."""
    path = node.pci(gpu.address) / "power_dpm_force_performance_level"
    level = sysfs.read_text(path)
    if gpu.virtual or (level is None and not path.exists()):
        return skipped("the driver lets nobody see or set this GPU's clocks", device=gpu.address)
    level = text_of(path)
    if level in _LEVELS:
        return None
    fields = {"device": gpu.address, "expected": " or ".join(_LEVELS), "found": level, "source": _AMD}
    return judged(good=False, reason=f"somebody holds its clocks: {level}", fix=_FIX, **fields)


def _amd_clock(node: Node, gpu: Gpu) -> float:
    path = node.pci(gpu.address) / "pp_dpm_sclk"
    found = re.findall(r"^\s*\w+:\s*(\d+)\s*Mhz", text_of(path), re.MULTILINE | re.IGNORECASE)
    if not found:
        raise CannotTellError(f"{path} lists no clocks")
    return max(float(clock) for clock in found)


def _compared(clocks: dict[str, tuple[float, str, str]]) -> Iterator[Verdict]:
    """Judge each GPU against what most of the node's GPUs may do."""
    if not clocks:
        return
    usual = Counter(clock for clock, _, _ in clocks.values()).most_common(1)[0][0]
    for address, (clock, serial, source) in clocks.items():
        fields = {"device": address, "serial": serial, "expected": f">= {usual:g}", "found": f"{clock:g}", "unit": "MHz", "source": source}
        yield judged(good=clock >= usual, reason="its highest clock is lower than that of the node's other GPUs", fix=_FIX, **fields)


CHECK = Check(
    "gpu_clocks",
    "All GPUs may run at the same highest clock, and nobody holds them down.",
    "AMD: pp_dpm_sclk in sysfs; NVIDIA: nvidia-smi",
    _look,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
