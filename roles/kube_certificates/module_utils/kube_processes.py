"""Read when the programs of the Kubernetes control plane on this host were started."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def started(stat: str, uptime_s: float, now: float, ticks: int) -> float:
    """Return the start time of a process in seconds since the epoch, from its line in /proc/PID/stat."""
    return now - uptime_s + int(stat.rsplit(")", 1)[1].split()[19]) / ticks


def running(proc: Path, now: float) -> dict[str, float]:
    """Return the start time of each running program of the control plane."""
    uptime_s, ticks = float((proc / "uptime").read_text(encoding="ascii").split()[0]), os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for path in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError, IndexError, ValueError):
            name = path.read_bytes().split(b"\0")[0].rsplit(b"/", 1)[-1].decode("utf-8", "replace")
            if name in PROGRAMS:
                began = started(path.with_name("stat").read_text(encoding="utf-8", errors="replace"), uptime_s, now, ticks)
                found[name] = max(found.get(name, 0.0), began)
    return found
