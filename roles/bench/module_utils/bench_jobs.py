# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""What runs on a GPU host beside a bench: jobs of Slurm and of primus-watch, and whatever else computes on a GPU, as pods do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_UNIT = re.compile(r"/(primus-job-[^/\n]+)\.service")
_TITLE = re.compile(r"slurmstepd: \[(\d+)\.")
# Slurm's control groups, versions 1 and 2: https://slurm.schedmd.com/cgroups.html
_STEP = re.compile(r"/job_(\d+)/step_")
_POD = re.compile(r"/kubepods[./]")
# What every program that computes with ROCm or CUDA opens: the files of these names, and no others. Those of single GPUs
# (/dev/dri/renderD*, /dev/nvidia0) are held as well by device plugins and exporters, which run on every node of Kubernetes for good.
# https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html; for CUDA, primus_bootstrap/launch/checks/gpu/access.py
_COMPUTE = ("/dev/kfd", "/dev/nvidia-uvm")
# Services that open them all the same, and compute nothing. gpuagent of AMD's exporter listens to events: rsmi_event_notification_init in
# rocm_smi_lib opens /dev/kfd. nvidia-persistenced(1) has an --uvm-persistence-mode. DCGM. The kernel cuts names after 15 characters.
_WATCHERS = ("gpuagent", "amd-metrics-exp", "nvidia-persiste", "nv-hostengine", "dcgm-exporter")


def running_jobs(root: Path = Path("/")) -> list[str]:
    """Return the jobs that run here, in words; one that begins with `perhaps` says why it cannot be told.

    Jobs of Slurm are known by their control groups and by the title of what holds their steps, those of primus-watch by their units.
    Every other process that computes on a GPU counts as well: pods, and programs that somebody started by hand.
    """
    devices = [device for device in _COMPUTE if (root / device[1:]).exists()]
    found: set[str] = set()
    hidden: list[str] = []
    for process in root.glob("proc/[0-9]*"):
        # By the control group of each process, wherever systemd's own tree begins: in a container that is not at the root.
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
        found.add(f"perhaps one: of {len(hidden)} processes it cannot be read which files they have open, as of {hidden[0]}")
    return sorted(found)


def _opened(process: Path, devices: Collection[str]) -> str:
    """Return which of the devices a process has open; empty where none, or where it has ended.

    Raises:
        PermissionError: it cannot be told.
    """
    try:
        for number in os.listdir(process / "fd"):  # noqa: PTH208 - thousands of them: names are enough
            target = os.readlink(process / "fd" / number)  # noqa: PTH115 - what the kernel says, as it is
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
