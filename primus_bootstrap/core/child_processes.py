"""Start and supervise child processes, pass signals on to them, and end everything below this process.

Python 3.9, standard library, Linux only: it reads /proc and calls prctl.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType
    from typing import IO, Any

    Child = subprocess.Popen[bytes]

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.1
# A terminal and a service manager may both send a signal for one request: a signal within this time of the first is the same request.
REPEAT_AFTER_S = 1.0
_TERMINATE_S = 5.0


class StopSignals:
    """Catch SIGTERM, SIGINT and SIGHUP while entered, instead of ending and leaving children behind."""

    def __init__(self, ignore_until: float = 0.0) -> None:
        """Ignore signals before a time of the monotonic clock."""
        self._ignore_until = ignore_until
        self.first: signal.Signals | None = None  # the first signal that arrived
        self.first_at = 0.0  # when it arrived, by the monotonic clock
        self.repeated = False  # another signal arrived more than REPEAT_AFTER_S later: stop at once
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:  # noqa: PYI034 - typing.Self is not in Python 3.9
        """Install the handlers."""
        self._previous_handlers = {number: signal.signal(number, self._record) for number in _STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now < self._ignore_until:
            return
        if self.first is None:
            self.first, self.first_at = signal.Signals(number), now
        elif now - self.first_at > REPEAT_AFTER_S:
            self.repeated = True


def start(
    argv: Sequence[str], environment: Mapping[str, str], *, output: int | IO[bytes] | None = None, folder: str | None = None
) -> Child:
    """Start a program in a session of its own, so that a terminal's Ctrl-C does not reach it.

    The kernel sends it SIGTERM if this process dies.
    """
    libc = ctypes.CDLL(None)  # loaded before the fork
    return subprocess.Popen(
        argv,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
        preexec_fn=partial(_exit_with_parent, libc, os.getpid()),  # noqa: PLW1509 - nothing else runs between fork and exec; it takes no lock
    )


def fork() -> int:
    """Fork, and return the child's pid (0 in the child).

    The child leads a session of its own, has the default signal handlers, and gets SIGTERM if this process dies.
    """
    libc, parent = ctypes.CDLL(None), os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _exit_with_parent(libc, parent)
    return pid


def _exit_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(128 + signal.SIGTERM)


def signal_on_parent_death(number: signal.Signals, parent: int) -> None:
    """Get a signal when the parent of this process ends, also if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def become_subreaper() -> None:
    """Adopt descendants whose parent ends, so that `end_descendants` finds them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt descendants whose parent ends, during a `with` block."""
    before = ctypes.c_int(0)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    become_subreaper()
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def poll(child: Child) -> int | None:
    """Wait up to 0.1 s for a child; return its exit code, None while it runs. Also reap one adopted process that has ended."""
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is not None and found.si_pid not in (0, child.pid):
        os.waitpid(found.si_pid, os.WNOHANG)
    try:
        return child.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


def wait_for(pid: int, timeout_s: float) -> int | None:
    """Wait for a forked child; return its exit code (-n after signal n), None if it still runs after the time limit."""
    deadline = time.monotonic() + timeout_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S / 10)


def supervise(
    child: Child,
    signals: StopSignals,
    *,
    grace_s: float,
    targets: Callable[[int], Sequence[int]] = lambda pid: (pid,),
    request_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Wait for a child. Pass the first signal on as one SIGTERM; end everything after the grace time or at a repeated signal.

    Args:
        grace_s: Seconds between the first signal and the end of everything.
        targets: Returns the processes that get SIGTERM, from the child's pid.
        request_stop: Stops the program in another way; called once. If it returns True, no SIGTERM is sent.

    Returns:
        The child's exit code, -n if signal n ended it.
    """
    passed_on = False
    while True:
        code = poll(child)
        if code is not None:
            return code
        if signals.first is None:
            continue
        if not passed_on:
            passed_on = True
            send_signal(() if request_stop() else targets(child.pid) or (child.pid,), signal.SIGTERM)
        if signals.repeated or time.monotonic() - signals.first_at > grace_s:
            end_descendants(_TERMINATE_S)
            return child.wait()


def kill_session(pid: int, timeout_s: float) -> bool:
    """Kill a child that leads a session, and everything below it; return whether it ended within the time limit.

    A process that waits in the kernel for a device or a dead file server does not end; it is left behind.
    """
    below = descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    send_signal(below, signal.SIGKILL)
    return wait_for(pid, timeout_s) is not None


def end_descendants(timeout_s: float) -> tuple[int, ...]:
    """Send SIGTERM to every process below this one, and SIGKILL to those left after the time limit; return the pids that got SIGTERM."""
    found = descendants(os.getpid())
    send_signal(found, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        time.sleep(_POLL_S / 2)
    for _ in range(3):  # a process that forks while it is killed leaves a child
        left = descendants(os.getpid())
        send_signal(left, signal.SIGKILL)
        time.sleep(_POLL_S if left else 0)
    return found


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; skip those that have ended or belong to another account."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def children_of(pid: int) -> tuple[int, ...]:
    """Return the direct children of a process, zombies excluded."""
    return tuple(child for child, parent in _parents().items() if parent == pid)


def descendants(pid: int) -> tuple[int, ...]:
    """Return every process below another, zombies excluded."""
    parents = _parents()
    found: list[int] = []
    generation = {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found.extend(sorted(generation))
    return tuple(found)


def _parents() -> dict[int, int]:
    """Return the parent of every process, from /proc; zombies are left out."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            # proc_pid_stat(5): pid (comm) state ppid …; comm may contain anything, so search its last parenthesis.
            state, parent = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z":
            parents[int(entry.name)] = int(parent)
    return parents
