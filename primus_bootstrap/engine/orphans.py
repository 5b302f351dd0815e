"""Kills the remaining processes of an Ansible run if its supervisor (`shim.py`) was killed, for example by the kernel's OOM killer.

Ansible's main process dies with the supervisor, but its workers have their own sessions. This process therefore adopts
orphaned descendants while Ansible runs (PR_SET_CHILD_SUBREAPER), and kills those of the run afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.child_processes import adopting_orphans, descendants, send_signal

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT_S = 20.0


@contextlib.contextmanager
def adopting(mark: str, lock: Path) -> Iterator[None]:
    """Adopt orphaned processes during a `with` block; afterwards kill those of the run and wait for their end.

    A descendant of this process belongs to the run if its environment contains `mark`, if it has `lock` open, or if it
    descends from such a process.
    """
    with adopting_orphans():
        try:
            yield
        finally:
            _end_all(mark.encode(), lock)


def _end_all(mark: bytes, lock: Path) -> None:
    deadline = time.monotonic() + _LIMIT_S
    killed: set[int] = set()
    while (alive := _run_processes(mark, lock) | _uncollected(killed)) and time.monotonic() < deadline:
        send_signal(alive, signal.SIGKILL)
        killed |= alive
        time.sleep(0.02)


def _uncollected(killed: set[int]) -> set[int]:
    """Collect the killed processes that became children of this process; return those that have not ended."""
    waiting = set()
    for pid in tuple(killed):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                waiting.add(pid)
                continue
        killed.discard(pid)
    return waiting


def _run_processes(mark: bytes, lock: Path) -> set[int]:
    """Return the living processes of the run."""
    pids: set[int] = set()
    for pid in descendants(os.getpid()):
        if pid not in pids and (_is_marked(pid, mark) or _has_open(pid, lock)):
            pids |= {pid, *descendants(pid)}
    return pids


def _is_marked(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        target = path.stat()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(entry.stat(), target):
                    return True
    return False
