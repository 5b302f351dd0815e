"""Check that no GPU lowers its clocks because of heat or its power supply. Reaching the power cap under load is normal."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.limits import limit, table
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, Verdicts, pass_or_fail, skipped, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_NVIDIA = "https://docs.nvidia.com/deploy/nvidia-smi/ (clocks event reasons)"
_BAD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_FIX = "check the cooling and the power supplies of the node"


def _check(node: Node) -> Verdicts:
    first = {gpu.address: _metrics(node, gpu) for gpu in node.gpus_of("amd")}
    if first:
        time.sleep(limit("gpu_throttle_seconds").value)
    for gpu in node.gpus_of("amd"):
        try:
            yield _amd(gpu, first[gpu.address], _metrics(node, gpu))
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=gpu.address, source=table("gpu_metrics")["source"])
    if node.gpus_of("nvidia"):
        yield from map(_nvidia, nvidia.query(node))


def _metrics(node: Node, gpu: Gpu) -> bytes | str:
    """Return the driver's table, or, as text, the reason why it cannot be read."""
    try:
        return (node.pci(gpu.address) / "gpu_metrics").read_bytes()
    except OSError as error:
        return f"gpu_metrics of {gpu.address} cannot be read: {error.strerror}"


def _amd(gpu: Gpu, before: bytes | str, after: bytes | str) -> Verdict:
    if gpu.virtual:
        return skipped("a virtual function reports no throttling", device=gpu.address)
    layout = table("gpu_metrics")
    (times, _), (later, states) = _counters(before), _counters(after)
    active = {**{name: later[name] != times.get(name) for name in later}, **{name: bool(bits) for name, bits in states.items()}}
    bad = [name for name, is_active in active.items() if is_active and name not in layout["normal"]]
    fields = {"device": gpu.address, "expected": "none", "found": ", ".join(bad) or "none", "source": layout["source"]}
    return pass_or_fail(good=not bad, reason=f"the GPU lowers its clocks: {', '.join(bad)}", fix=_FIX, **fields)


def _counters(metrics: bytes | str) -> tuple[dict[str, int], dict[str, int]]:
    """Return how long each throttler has been active since the driver was loaded, and the bits of the active throttlers."""
    if isinstance(metrics, str):
        raise UnavailableError(metrics, fix="see preflight_gpu_driver")
    layout = _layout(metrics)
    times = {name: int(struct.unpack_from("<I", metrics, at)[0]) for name, at in layout.get("times", {}).items()}
    words = {name: int(struct.unpack_from("<Q", metrics, at)[0]) for name, (at, _, _) in layout.get("states", {}).items()}
    if 0xFFFFFFFF in times.values() or 0xFFFFFFFFFFFFFFFF in words.values():
        raise UnavailableError("the driver does not count throttling on this GPU (all bits are set)", fix="amd-smi metric --throttle")
    states = {name: words[name] >> first & ((1 << (last - first + 1)) - 1) for name, (_, first, last) in layout.get("states", {}).items()}
    return times, states


def _layout(metrics: bytes) -> Mapping[str, Any]:
    """Return the offsets in a table of this version."""
    if len(metrics) < struct.calcsize("<HBB"):
        raise UnavailableError(f"gpu_metrics has only {len(metrics)} bytes")
    size, major, minor = struct.unpack_from("<HBB", metrics)
    layouts = table("gpu_metrics")["versions"]
    layout = layouts.get(f"{major}.{minor}")
    if layout is None:
        reason = f"gpu_metrics has version {major}.{minor}; this check supports {', '.join(layouts)}"
        raise UnavailableError(reason, fix="amd-smi metric --throttle")
    if len(metrics) < size or size < layout["least_bytes"]:
        raise UnavailableError(f"gpu_metrics of version {major}.{minor} has {len(metrics)} bytes; its header states {size}")
    return dict(layout)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    fields = {"device": one.address, "serial": one.serial, "expected": "none", "source": _NVIDIA}
    states = {
        name.partition("_reason_")[2]: text
        for name, text in one.children("clocks_event_reasons", "clocks_throttle_reasons")
        if "_reason_" in name
    }
    missing = sorted(name for name in _BAD if states.get(name) not in ("Active", "Not Active"))
    if missing:
        return unknown(f"nvidia-smi does not report {', '.join(missing)}", fix="nvidia-smi -q -d PERFORMANCE", **fields)
    bad = ", ".join(name for name in _BAD if states[name] == "Active")
    return pass_or_fail(good=not bad, reason=f"the GPU lowers its clocks: {bad}", fix=_FIX, found=bad or "none", **fields)


CHECK = Check(
    "gpu_throttle",
    "No GPU lowers its clocks because of heat or its power supply.",
    "AMD: gpu_metrics in sysfs, read twice; NVIDIA: nvidia-smi",
    _check,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
