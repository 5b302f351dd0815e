"""Check that all GPUs with the same PCI id have the same firmware, and the expected version."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, pass_or_fail, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.gpus import Gpu

_FIX = "update all GPUs to the same version with the vendor's firmware tool"


def _check(node: Node) -> Verdicts:
    by_device_id: dict[str, dict[str, str]] = defaultdict(dict)
    for gpu in node.gpu_findings.gpus:
        version = _amd(node, gpu) if gpu.vendor == "amd" else _nvidia(node, gpu)
        if version:
            by_device_id[gpu.device_id][gpu.address] = version
        else:
            yield unknown("the driver reports no firmware version", device=gpu.address, fix="see preflight_gpu_driver")
    stated = node.expected.get("gpu_firmware")
    for versions in by_device_id.values():
        expected = stated or Counter(versions.values()).most_common(1)[0][0]
        source = node.expected.source("gpu_firmware") or "the most frequent version on the node's GPUs"
        reason = "not the expected version" if stated else "not the version of the node's other GPUs"
        for address, version in versions.items():
            fields = {"device": address, "expected": expected, "found": version, "source": source}
            yield pass_or_fail(good=version == expected, reason=reason, fix=_FIX, **fields)


def _amd(node: Node, gpu: Gpu) -> str:
    return sysfs.read_text(node.pci(gpu.address) / "vbios_version") or ""


def _nvidia(node: Node, gpu: Gpu) -> str:
    text = sysfs.read_text(node.host.path("proc", "driver", "nvidia", "gpus", gpu.address, "information")) or ""
    match = re.search(r"^Video BIOS:\s*(\S+)", text, re.MULTILINE)
    return match[1] if match and "?" not in match[1] else ""


CHECK = Check(
    "gpu_firmware",
    "All GPUs with the same PCI id have the same video BIOS, and the expected version.",
    "AMD: vbios_version in sysfs; NVIDIA: /proc/driver/nvidia/gpus",
    _check,
    needs=(GPU,),
)
