"""Does a GPU lower its clocks now because of heat or of its power supply? Reaching the power cap under load is normal and no fault."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.limits import limit, table
from primus_bootstrap.launch.checks.model import GPU, CannotTellError, Check, judged, skipped, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu

_NVIDIA = "https://docs.nvidia.com/deploy/nvidia-smi/ (clocks event reasons)"
_BAD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_FIX = "look at cooling and power supplies; the GPU lowers its clocks to protect itself"


def _look(node: Node) -> Iterator[Verdict]:
    first = {gpu.address: _metrics(node, gpu) for gpu in node.gpus_of("amd")}
    if first:
        time.sleep(limit("gpu_throttle_seconds").value)
    for gpu in node.gpus_of("amd"):
        try:
            yield _amd(gpu, first[gpu.address], _metrics(node, gpu))
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, device=gpu.address, source=table("gpu_metrics")["source"])
    if node.gpus_of("nvidia"):
        yield from map(_nvidia, nvidia.query(node))


def _metrics(node: Node, gpu: Gpu) -> bytes | str:
    """Return the driver's table; a text is the reason why there is none."""
    try:
        return (node.pci(gpu.address) / "gpu_metrics").read_bytes()
    except OSError as error:
        return f"gpu_metrics of {gpu.address} cannot be read: {error.strerror}"


def _amd(gpu: Gpu, before: bytes | str, after: bytes | str) -> Verdict:
    if gpu.virtual:
        return skipped("a virtual function shows no throttling", device=gpu.address)
    layout = table("gpu_metrics")
    (times, _), (later, states) = _counters(before), _counters(after)
    at_work = {**{name: later[name] != times.get(name) for name in later}, **{name: bool(bits) for name, bits in states.items()}}
    bad = [name for name, works in at_work.items() if works and name not in layout["normal"]]
    fields = {"device": gpu.address, "expected": "none", "found": ", ".join(bad) or "none", "source": layout["source"]}
    return judged(good=not bad, reason=f"it lowers its clocks now: {', '.join(bad)}", fix=_FIX, **fields)


def _counters(metrics: bytes | str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the time that each throttler was at work since the driver loaded, and the bits of those that are at work now."""
    if isinstance(metrics, str):
        raise CannotTellError(metrics, fix="see preflight_gpu_driver")
    layout = _layout(metrics)
    times = {name: int(struct.unpack_from("<I", metrics, at)[0]) for name, at in layout.get("times", {}).items()}
    words = {name: int(struct.unpack_from("<Q", metrics, at)[0]) for name, (at, _, _) in layout.get("states", {}).items()}
    if 0xFFFFFFFF in times.values() or 0xFFFFFFFFFFFFFFFF in words.values():
        raise CannotTellError("the driver does not count throttling on this GPU (all bits are set)", fix="amd-smi metric --throttle")
    states = {name: words[name] >> first & ((1 << (last - first + 1)) - 1) for name, (_, first, last) in layout.get("states", {}).items()}
    return times, states


def _layout(metrics: bytes) -> Mapping[str, Any]:
    """Return where things stand in a table of this version."""
    if len(metrics) < struct.calcsize("<HBB"):
        raise CannotTellError(f"gpu_metrics has {len(metrics)} bytes")
    size, major, minor = struct.unpack_from("<HBB", metrics)
    layouts = table("gpu_metrics")["versions"]
    layout = layouts.get(f"{major}.{minor}")
    if layout is None:
        raise CannotTellError(
            f"gpu_metrics has the version {major}.{minor}; known are {', '.join(layouts)}", fix="amd-smi metric --throttle"
        )
    if len(metrics) < size or size < layout["least_bytes"]:
        raise CannotTellError(f"gpu_metrics of version {major}.{minor} has {len(metrics)} bytes and says {size}")
    return dict(layout)


def _nvidia(one: nvidia.Smi) -> Verdict:
    fields = {"device": one.address, "serial": one.serial, "expected": "none", "source": _NVIDIA}
    states = {
        name.partition("_reason_")[2]: text
        for name, text in one.below("clocks_event_reasons", "clocks_throttle_reasons")
        if "_reason_" in name
    }
    strange = sorted(name for name in _BAD if states.get(name) not in ("Active", "Not Active"))
    if strange:
        return unknown(
            f"nvidia-smi does not say whether it slows down ({', '.join(strange)})", fix="nvidia-smi -q -d PERFORMANCE", **fields
        )
    bad = ", ".join(name for name in _BAD if states[name] == "Active")
    return judged(good=not bad, reason=f"it lowers its clocks now: {bad}", fix=_FIX, found=bad or "none", **fields)


CHECK = Check(
    "gpu_throttle",
    "No GPU lowers its clocks now because of heat or of its power supply.",
    "AMD: gpu_metrics in sysfs, twice; NVIDIA: nvidia-smi",
    _look,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
