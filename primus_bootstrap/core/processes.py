"""The processes below a process, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def children_of(pid: int) -> tuple[int, ...]:
    """Return the direct children of a process that still run."""
    return tuple(child for child, parent in _parents().items() if parent == pid)


def descendants(pid: int) -> tuple[int, ...]:
    """Return every process below another that still runs."""
    parents = _parents()
    found: list[int] = []
    generation = {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found.extend(sorted(generation))
    return tuple(found)


def _parents() -> dict[int, int]:
    """Return the parent of every process; zombies are left out, they have ended."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            # proc_pid_stat(5): pid (comm) state ppid …; comm may hold anything, the last parenthesis ends it.
            state, parent = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z":
            parents[int(entry.name)] = int(parent)
    return parents
