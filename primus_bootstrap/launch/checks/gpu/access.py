"""May this user open the GPUs' device files?"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, container, judged, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_AMD = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html (groups render and video)"
_NVIDIA = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (device files)"
_FIX = "apply the phase gpu; in a container hand the devices in (--device)"


def _look(node: Node) -> Iterator[Verdict]:
    devices = node.host.path("dev")
    amd, nvidia = (len(node.gpus_of(vendor)) for vendor in ("amd", "nvidia"))
    given = 1 if container(node) else None  # a container is given some of the machine's GPUs, and nobody says how many
    if amd:
        names = ["kfd", *(f"dri/{name}" for name in listed(devices / "dri") if name.startswith("renderD"))]
        yield _record(node, names, 1 + (given or amd), _AMD)
    if nvidia:
        cards = [name for name in listed(devices) if re.fullmatch(r"nvidia\d+", name)]
        yield _record(node, ["nvidiactl", "nvidia-uvm", *cards], 2 + (given or nvidia), _NVIDIA)


def _record(node: Node, names: list[str], least: int, source: str) -> Verdict:
    closed = [f"/dev/{name}" for name in names if not os.access(node.host.path("dev", name), os.R_OK | os.W_OK)]
    opened = len(names) - len(closed)
    short = f"{least} are needed" if opened + len(closed) < least else ""
    reason = f"not there, or not this user's: {', '.join(closed)}" if closed else short
    fields = {"expected": f">= {least}", "found": str(opened), "unit": "device files", "source": source}
    return judged(good=not closed and opened >= least, reason=reason, fix=_FIX, **fields)


CHECK = Check("gpu_access", "This user may open the device file of every GPU.", "/dev/kfd, /dev/dri, /dev/nvidia*", _look, needs=(GPU,))
