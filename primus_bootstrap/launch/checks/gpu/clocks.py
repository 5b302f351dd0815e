"""Check that all GPUs of the node have the same maximum clock and that their clocks are not fixed."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, Verdicts, pass_or_fail, require_text, skipped, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_AMD = "pp_dpm_sclk and power_dpm_force_performance_level, https://docs.kernel.org/gpu/amdgpu/thermal.html"
_NVIDIA = "nvidia-smi -q -d CLOCK: maximum SM clock"
# `auto` is the driver's default; AMD recommends the cap perf_determinism for equal speed on all GPUs.
_LEVELS = ("auto", "high", "perf_determinism")
_FIX = "run amd-smi reset --clocks (NVIDIA: nvidia-smi -rgc), and find the service that sets the clocks at boot"


def _check(node: Node) -> Verdicts:
    clocks: dict[str, tuple[float, str, str]] = {}
    for gpu in node.gpus_of("amd"):
        try:
            verdict = _performance_level(node, gpu)
            if verdict is not None:
                yield verdict
                continue
            clocks[gpu.address] = (_amd_clock(node, gpu), "", _AMD)
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=gpu.address, source=_AMD)
    for one in nvidia.query(node) if node.gpus_of("nvidia") else ():
        try:
            clock = one.number("max_clocks/sm_clock")
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=one.address, serial=one.serial, source=_NVIDIA)
            continue
        if clock is not None:
            clocks[one.address] = (clock, one.serial, _NVIDIA)
    yield from _compared(clocks)


def _performance_level(node: Node, gpu: Gpu) -> Verdict | None:
    """Return a verdict if the GPU's clocks cannot be set or are fixed; None if its maximum clock has to be compared."""
    path = node.pci(gpu.address) / "power_dpm_force_performance_level"
    level = sysfs.read_text(path)
    if gpu.virtual or (level is None and not path.exists()):
        return skipped("the driver does not expose this GPU's clocks", device=gpu.address)
    level = require_text(path)
    if level in _LEVELS:
        return None
    fields = {"device": gpu.address, "expected": " or ".join(_LEVELS), "found": level, "source": _AMD}
    return pass_or_fail(good=False, reason=f"its clocks are fixed: performance level {level}", fix=_FIX, **fields)


def _amd_clock(node: Node, gpu: Gpu) -> float:
    path = node.pci(gpu.address) / "pp_dpm_sclk"
    found = re.findall(r"^\s*\w+:\s*(\d+)\s*Mhz", require_text(path), re.MULTILINE | re.IGNORECASE)
    if not found:
        raise UnavailableError(f"{path} lists no clocks")
    return max(float(clock) for clock in found)


def _compared(clocks: dict[str, tuple[float, str, str]]) -> Verdicts:
    """Compare each GPU with the most frequent maximum clock of the node."""
    if not clocks:
        return
    usual = Counter(clock for clock, _, _ in clocks.values()).most_common(1)[0][0]
    for address, (clock, serial, source) in clocks.items():
        fields = {"device": address, "serial": serial, "expected": f">= {usual:g}", "found": f"{clock:g}", "unit": "MHz", "source": source}
        yield pass_or_fail(good=clock >= usual, reason="its maximum clock is lower than that of the node's other GPUs", fix=_FIX, **fields)


CHECK = Check(
    "gpu_clocks",
    "All GPUs have the same maximum clock, and their clocks are not fixed.",
    "AMD: pp_dpm_sclk in sysfs; NVIDIA: nvidia-smi",
    _check,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
