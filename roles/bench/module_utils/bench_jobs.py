# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Find jobs on a GPU host: those of Slurm and primus-watch, and other processes that use a GPU, such as pods."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_UNIT = re.compile(r"/(primus-job-[^/\n]+)\.service")
_TITLE = re.compile(r"slurmstepd: \[(\d+)\.")
# cgroups of Slurm, versions 1 and 2: https://slurm.schedmd.com/cgroups.html
_STEP = re.compile(r"/job_(\d+)/step_")
_POD = re.compile(r"/kubepods[./]")
# Device files that every program with ROCm or CUDA opens. Device plugins and exporters of Kubernetes keep those of single GPUs open too
# (/dev/dri/renderD*, /dev/nvidia0).
# https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html; for CUDA, primus_bootstrap/launch/checks/gpu/access.py
_COMPUTE = ("/dev/kfd", "/dev/nvidia-uvm")
# Services that open them without computing. gpuagent of AMD's exporter reads events: rsmi_event_notification_init in rocm_smi_lib opens
# /dev/kfd. nvidia-persistenced(1) has an --uvm-persistence-mode. DCGM. The kernel truncates names to 15 characters.
_WATCHERS = ("gpuagent", "amd-metrics-exp", "nvidia-persiste", "nv-hostengine", "dcgm-exporter")


def running_jobs(root: Path = Path("/")) -> list[str]:
    """Return descriptions of the jobs on this host. One that begins with `perhaps` says why a job cannot be ruled out.

    Slurm jobs are found by their cgroups and by the titles of slurmstepd, jobs of primus-watch by their units. Other processes that use a
    GPU count too: pods, and programs that were started manually.
    """
    devices = [device for device in _COMPUTE if (root / device[1:]).exists()]
    found: set[str] = set()
    hidden: list[str] = []
    for process in root.glob("proc/[0-9]*"):
        # Search the whole cgroup path: in a container, the tree of systemd is not at the root.
        group = _read(process / "cgroup")
        title = _TITLE.match(_read(process / "cmdline").replace("\0", " "))
        named = {*_UNIT.findall(group), *(f"Slurm job {number}" for number in [*_STEP.findall(group), *(title.groups() if title else ())])}
        found |= named
        if not devices or named:
            continue
        name = _read(process / "comm").strip()
        try:
            device = "" if name in _WATCHERS else _opened(process, devices)
        except PermissionError:
            hidden.append(f"{process.name} ({name})")
            continue
        if device:
            found.add(f"process {process.name} ({name}){' of a pod' if _POD.search(group) else ''} on {device}")
    if hidden:
        found.add(f"perhaps one: the open files of {len(hidden)} processes, such as {hidden[0]}, cannot be read")
    return sorted(found)


def _opened(process: Path, devices: Collection[str]) -> str:
    """Return one of the devices that the process has open; empty if there is none or it has ended.

    Raises:
        PermissionError: The open files cannot be read.
    """
    try:
        for number in os.listdir(process / "fd"):  # noqa: PTH208 - thousands of them: names are enough
            target = os.readlink(process / "fd" / number)  # noqa: PTH115 - the text of the kernel, unchanged
            if target in devices:
                return target
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
