"""One run a cluster: the lock that a run holds, and that its Ansible processes hold for as long as one of them lives.

Two files, each locked with flock(2), so that the kernel frees them when their holders die:

* `lock`: held by the controller; holds the holder's JSON for whoever comes second.
* `lock.children`: held by the shim and by every Ansible process under it (an inherited descriptor). While a dead
  controller's Ansible is still being ended, a new run waits for this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import LockedError, PlanError
from primus_bootstrap.engine.state_errors import state_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHILDREN_WAIT_S = 30.0
# Long enough for `read_holder` of another command to let go, short enough for a second apply to be told at once.
_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock; `since` is seconds since the epoch (UTC)."""

    pid: int
    user: str
    host: str
    verb: str
    run: str
    since: float


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock of the cluster with this state folder, held by this process; `run` is the id that the holder's run has."""

    state_dir: Path
    run: str


def children_lock(state_dir: Path) -> Path:
    """Return the file that the Ansible processes of a run lock."""
    return state_dir / "lock.children"


@contextlib.contextmanager
def cluster_lock(state_dir: Path, *, verb: str, run: str, wait_s: float = _CHILDREN_WAIT_S) -> Iterator[HeldLock]:
    """Hold the lock of a cluster.

    A verb that edits hosts.yaml holds it from before it reads the file until its run has ended.

    Args:
        state_dir: the cluster's state folder; made with mode 0700 where it is missing.
        verb: what the holder does, for the message to whoever comes second.
        run: the run's id.
        wait_s: how long to wait for the Ansible processes of a holder that died.

    Raises:
        LockedError: somebody else holds it.
        PlanError: the state folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with state_errors(PlanError, state_dir):
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _open(state_dir / "lock", stack)
            if not _lock_within(descriptor, _GRACE_S):
                raise _locked(state_dir)
            _wait_for_children(state_dir, wait_s)
            holder = Holder(os.getpid(), getpass.getuser(), socket.gethostname(), verb, run, time.time())
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        try:
            yield HeldLock(state_dir, run)
        finally:
            with contextlib.suppress(OSError):  # what it says counts only while it is locked
                os.ftruncate(descriptor, 0)


def read_holder(state_dir: Path) -> Holder | None:
    """Return who holds the lock now, or None where nobody does."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(state_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        stack.callback(os.close, descriptor)
        return None if _try_lock(descriptor, shared=True) else _written_holder(state_dir)


def _open(path: Path, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    return descriptor


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(descriptor: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not _try_lock(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _wait_for_children(state_dir: Path, wait_s: float) -> None:
    with contextlib.ExitStack() as stack:
        if not _lock_within(_open(children_lock(state_dir), stack), wait_s):
            raise LockedError(
                f"the Ansible processes of a run that was killed are still there after {wait_s:.0f} s",
                fix=f"end them: fuser -k {children_lock(state_dir)}",
            )


def _written_holder(state_dir: Path) -> Holder | None:
    try:
        holder = Holder(**json.loads((state_dir / "lock").read_text(encoding="utf-8")))
        return replace(holder, since=float(holder.since))
    except (OSError, ValueError, TypeError):
        return None


def _locked(state_dir: Path) -> LockedError:
    holder = _written_holder(state_dir)
    if holder is None:
        return LockedError("another run of this cluster is just starting or ending", fix="try again in a moment")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder.since))
    return LockedError(
        f"{holder.verb} by {holder.user} on {holder.host} (pid {holder.pid}) holds this cluster since {since} UTC, run {holder.run}",
        fix=f"wait until it has ended, or end it cleanly on {holder.host}: kill -INT {holder.pid}",
    )
