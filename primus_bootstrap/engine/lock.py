"""The cluster's lock, which allows one run at a time.

Two files are locked with flock(2), so the kernel unlocks them when their holders die:

* `lock`: locked by the controller; it contains the holder as JSON, for the error message of the next command.
* `lock.children`: locked by the supervisor (`shim.py`) and by every Ansible process below it, through an inherited
  descriptor. If a controller dies, the next run waits until its Ansible processes have ended.
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
from primus_bootstrap.engine.state_folder import state_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHILDREN_WAIT_S = 30.0
# `read_holder` of another command holds the lock for a moment.
GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the lock; `since` is seconds since the epoch (UTC)."""

    pid: int
    user: str
    host: str
    verb: str
    run: str
    since: float


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The cluster's lock, held by this process; `run` is the id of its run."""

    state_dir: Path
    run: str


def children_lock(state_dir: Path) -> Path:
    """Return the file that the Ansible processes of a run lock."""
    return state_dir / "lock.children"


@contextlib.contextmanager
def cluster_lock(state_dir: Path, *, verb: str, run: str, wait_s: float = _CHILDREN_WAIT_S, grace_s: float = GRACE_S) -> Iterator[HeldLock]:
    """Hold the lock of a cluster during a `with` block.

    A verb that edits hosts.yaml takes the lock before it reads the file and releases it after its run.

    Args:
        state_dir: The cluster's state folder; created with mode 0700 if it is missing.
        verb: The verb of the holder, for the error message of the next command.
        wait_s: How long to wait for the Ansible processes of a holder that died.
        grace_s: How long to wait for a holder that lives.

    Raises:
        LockedError: Another process holds the lock.
        PlanError: The state folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with state_errors(PlanError, state_dir):
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _open(state_dir / "lock", stack)
            if not _lock_within(descriptor, grace_s):
                raise _locked(state_dir)
            _wait_for_children(state_dir, wait_s)
            holder = Holder(os.getpid(), getpass.getuser(), socket.gethostname(), verb, run, time.time())
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        try:
            yield HeldLock(state_dir, run)
        finally:
            with contextlib.suppress(OSError):  # readers ignore the content of an unlocked file
                os.ftruncate(descriptor, 0)


def read_holder(state_dir: Path) -> Holder | None:
    """Return the holder of the lock, or None if the cluster is not locked."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(state_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        stack.callback(os.close, descriptor)
        return None if _try_lock(descriptor, shared=True) else _recorded_holder(state_dir)


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
                f"Ansible processes of a killed run are still running after {wait_s:.0f} s",
                fix=f"kill them: fuser -k {children_lock(state_dir)}",
            )


def _recorded_holder(state_dir: Path) -> Holder | None:
    try:
        holder = Holder(**json.loads((state_dir / "lock").read_text(encoding="utf-8")))
        return replace(holder, since=float(holder.since))
    except (OSError, ValueError, TypeError):
        return None


def _locked(state_dir: Path) -> LockedError:
    holder = _recorded_holder(state_dir)
    if holder is None:
        return LockedError("another run of this cluster is starting or ending", fix="run the same command again in a few seconds")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(holder.since))
    return LockedError(
        f"the cluster is locked by {holder.verb} of {holder.user} on {holder.host} (pid {holder.pid}, run {holder.run}), since {since} UTC",
        fix=f"wait until it ends, or stop it on {holder.host}: kill -INT {holder.pid}",
    )
