"""Check that this user may open the device files of the GPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, container_engine, list_names, pass_or_fail
from primus_bootstrap.launch.detect.device_access import device_names

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict

_AMD = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html (groups render and video)"
_NVIDIA = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (device files)"
_FIX = "add this user to the group of the files (gpu_env_device_group) and log in again; for a container, pass the devices (--device)"


def _check(node: Node) -> Verdicts:
    devices = node.host.path("dev")
    amd, nvidia = (len(node.gpus_of(vendor)) for vendor in ("amd", "nvidia"))
    expected = 1 if container_engine(node) else None  # a container may have some of the host's GPUs; how many is not known
    if amd:
        yield _verdict(node, device_names("amd", (), list_names(devices / "dri")), 1 + (expected or amd), _AMD)
    if nvidia:
        yield _verdict(node, device_names("nvidia", list_names(devices), ()), 2 + (expected or nvidia), _NVIDIA)


def _verdict(node: Node, names: tuple[str, ...], least: int, source: str) -> Verdict:
    denied = [f"/dev/{name}" for name in names if not os.access(node.host.path("dev", name), os.R_OK | os.W_OK)]
    usable = len(names) - len(denied)
    reason = f"missing, or this user has no access: {', '.join(denied)}" if denied else f"{usable} of {least} device files exist"
    fields = {"expected": f">= {least}", "found": str(usable), "unit": "device files", "source": source}
    return pass_or_fail(good=not denied and usable >= least, reason=reason, fix=_FIX, **fields)


CHECK = Check("gpu_access", "This user may open the device file of every GPU.", "/dev/kfd, /dev/dri, /dev/nvidia*", _check, needs=(GPU,))
