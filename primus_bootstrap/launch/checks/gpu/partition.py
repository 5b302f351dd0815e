"""Check that all GPUs have the same partition mode, and the expected one: AMD's compute partitions, NVIDIA's MIG."""

from __future__ import annotations

from collections import Counter

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, Verdicts, pass_or_fail, skipped, unknown
from primus_bootstrap.launch.detect import sysfs

_FIX = "drain the node and set the mode: amd-smi set --compute-partition, or nvidia-smi -mig"


def _check(node: Node) -> Verdicts:
    modes: dict[str, tuple[str, str]] = {}
    for gpu in node.gpus_of("amd"):
        path = node.pci(gpu.address)
        parts = [sysfs.read_text(path / f"current_{kind}_partition") for kind in ("compute", "memory")]
        modes[gpu.address] = (" ".join(part for part in parts if part), "")
    for one in nvidia.query(node) if node.gpus_of("nvidia") else ():
        try:
            modes[one.address] = (one.text("mig_mode/current_mig") or "", one.serial)
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=one.address, serial=one.serial)
    yield from _compared(node, modes)


def _compared(node: Node, modes: dict[str, tuple[str, str]]) -> Verdicts:
    stated = node.expected.get("gpu_partition")
    usual = Counter(mode for mode, _ in modes.values() if mode).most_common(1)
    for address, (mode, serial) in modes.items():
        if not mode and (stated is None and not usual):
            yield skipped("this GPU has no partition modes", device=address, serial=serial)
            continue
        expected = stated or usual[0][0]
        fields = {"device": address, "serial": serial, "expected": expected, "found": mode or "none"}
        source = node.expected.source("gpu_partition") or "the most frequent mode on the node's GPUs"
        reason = "not the expected mode" if stated else "not the mode of the node's other GPUs"
        good = mode == expected or mode.split()[:1] == [expected]
        yield pass_or_fail(good=good, reason=reason, fix=_FIX, source=source, **fields)


CHECK = Check(
    "gpu_partition",
    "All GPUs have the same partition or MIG mode, and the expected one.",
    "AMD: current_compute_partition in sysfs; NVIDIA: nvidia-smi",
    _check,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
