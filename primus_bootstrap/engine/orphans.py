"""Ends what a job left behind where its shim could not: the kernel's OOM killer, say, took the shim itself.

Ansible's main process dies with the shim; its workers, in sessions of their own, do not. While a job runs this process
therefore adopts whatever loses its parent below it (PR_SET_CHILD_SUBREAPER), and ends what is left of the job afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.engine import shim

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_GET_CHILD_SUBREAPER = 37  # from <linux/prctl.h>
_LIMIT_S = 20.0


@contextlib.contextmanager
def adopting(mark: str, lock: Path) -> Iterator[None]:
    """Adopt orphans meanwhile; at the end, kill those of the job and wait until they are gone.

    A process is the job's where it was started with `mark` in its environment or holds `lock` open, or is below one that
    is. Nothing else is touched, and nothing that is not below this process.
    """
    before = ctypes.c_int(0)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    shim.prctl(shim.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        try:
            _end_all(mark.encode(), lock)
        finally:
            shim.prctl(shim.PR_SET_CHILD_SUBREAPER, before.value)


def _end_all(mark: bytes, lock: Path) -> None:
    deadline = time.monotonic() + _LIMIT_S
    killed: set[int] = set()
    while (left := _of_job(mark, lock) | _uncollected(killed)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        time.sleep(0.02)


def _uncollected(killed: set[int]) -> set[int]:
    """Collect those of the killed that became children of this process; return those that have not ended yet."""
    waiting = set()
    for pid in tuple(killed):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                waiting.add(pid)
                continue
        killed.discard(pid)
    return waiting


def _of_job(mark: bytes, lock: Path) -> set[int]:
    """Return the living processes of the job; one that has ended has neither environment nor open files."""
    found: set[int] = set()
    for pid in shim.descendants(os.getpid()):
        if pid not in found and (_is_marked(pid, mark) or _has_open(pid, lock)):
            found |= {pid, *shim.descendants(pid)}
    return found


def _is_marked(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(entry.stat(), wanted):
                    return True
    return False
