"""Do all GPUs of one kind have the same firmware, and the expected one?"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, judged, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu

_FIX = "bring all GPUs to one version of the vendor's firmware"


def _look(node: Node) -> Iterator[Verdict]:
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for gpu in node.gpu_findings.gpus:
        version = _amd(node, gpu) if gpu.vendor == "amd" else _nvidia(node, gpu)
        if version:
            kinds[gpu.device_id][gpu.address] = version
        else:
            yield unknown("the driver shows no firmware version", device=gpu.address, fix="see preflight_gpu_driver")
    wanted = node.expected.get("gpu_firmware")
    for versions in kinds.values():
        usual = wanted or Counter(versions.values()).most_common(1)[0][0]
        source = node.expected.source("gpu_firmware") or "what most of the node's GPUs have"
        for address, version in versions.items():
            reason = "not the expected version" if wanted else "other than the node's other GPUs"
            yield judged(good=version == usual, reason=reason, fix=_FIX, device=address, expected=usual, found=version, source=source)


def _amd(node: Node, gpu: Gpu) -> str:
    return sysfs.read_text(node.pci(gpu.address) / "vbios_version") or ""


def _nvidia(node: Node, gpu: Gpu) -> str:
    text = sysfs.read_text(node.host.path("proc", "driver", "nvidia", "gpus", gpu.address, "information")) or ""
    match = re.search(r"^Video BIOS:\s*(\S+)", text, re.MULTILINE)
    return match[1] if match and "?" not in match[1] else ""


CHECK = Check(
    "gpu_firmware",
    "All GPUs of one kind have the same video BIOS, and the expected one.",
    "AMD: vbios_version in sysfs; NVIDIA: /proc/driver/nvidia/gpus",
    _look,
    needs=(GPU,),
)
