"""Child processes that never outlive us, and signals that are passed on once: the only module that calls kill and prctl."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from primus_bootstrap.core.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType, TracebackType
    from typing import IO, Any

    Child = subprocess.Popen[bytes]

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TICK_S = 0.1
INSIST_S = 1.0  # a second signal within this time is the same wish: a terminal and a service manager may both send it
_LAST_CHANCE_S = 5.0


class Signals:
    """The signals that arrived while this is entered; without it they would end us and leave children behind."""

    def __init__(self, deaf_until: float = 0.0) -> None:
        """Nothing has arrived; what comes before a time of the monotonic clock is let pass."""
        self._deaf_until = deaf_until
        self.first: signal.Signals | None = None
        self.first_at = 0.0
        self.insisted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:  # noqa: PYI034 - typing.Self is not in Python 3.9
        """Take the signals."""
        self._before = {number: signal.signal(number, self._arrived) for number in _HANDLED}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now < self._deaf_until:
            return
        if self.first is None:
            self.first, self.first_at = signal.Signals(number), now
        elif now - self.first_at > INSIST_S:
            self.insisted = True


def start(
    argv: Sequence[str], environment: Mapping[str, str], *, output: int | IO[bytes] | None = None, folder: str | None = None
) -> Child:
    """Start a program in a session of its own (a terminal's Ctrl-C does not reach it); it gets SIGTERM should this process die."""
    die_with_us = partial(_die_with, ctypes.CDLL(None), os.getpid())
    return subprocess.Popen(
        argv,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
        preexec_fn=die_with_us,  # noqa: PLW1509 - there is no other way to set this between fork and exec; it takes no lock
    )


def fork() -> int:
    """Fork; the child (which gets 0) has a session of its own, the usual signals, and gets SIGTERM should this process die."""
    libc, parent = ctypes.CDLL(None), os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        _die_with(libc, parent)
    return pid


def kill_session(pid: int, patience_s: float) -> bool:
    """Kill a child that leads a session with everything below it; say whether it was gone, and collected, within some patience.

    What waits in the kernel for a device or a dead server is not killed by anything: it is left.
    """
    met = descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for other in met:
        _send(other, signal.SIGKILL)
    return ended(pid, patience_s) is not None


def ended(pid: int, patience_s: float) -> int | None:
    """Wait for a forked child, but not for ever; return its exit code (below 0 the signal), None where it still runs."""
    deadline = time.monotonic() + patience_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_TICK_S / 10)


def _die_with(libc: ctypes.CDLL, parent: int) -> None:
    """Ask the kernel for SIGTERM at the parent's death."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(143)


def poll(child: Child) -> int | None:
    """Wait a moment for a child; return its exit code, None while it runs. Orphans that ended meanwhile are collected."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is not None and ended.si_pid not in (0, child.pid):
        os.waitpid(ended.si_pid, os.WNOHANG)
    try:
        return child.wait(_TICK_S)
    except subprocess.TimeoutExpired:
        return None


def become_reaper() -> None:
    """Make orphans of our children ours, so that `end_descendants` finds them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def supervise(
    child: Child,
    signals: Signals,
    *,
    grace_s: float,
    targets: Callable[[int], Sequence[int]] = lambda pid: (pid,),
    ask: Callable[[], bool] = lambda: False,
) -> int:
    """Wait for a child; at the first signal send SIGTERM once to its targets, and end everything when the grace is over.

    Args:
        child: What was started.
        signals: Where signals to us arrive.
        grace_s: Seconds between the first signal and the end of everything.
        targets: The processes that get SIGTERM, by the child's pid.
        ask: Asks for the end in another way, once; where it could (True), nothing gets SIGTERM.

    Returns:
        The child's exit code; below 0 it is the number of the signal that ended it.
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
            for pid in () if ask() else targets(child.pid) or (child.pid,):
                _send(pid, signal.SIGTERM)
        if signals.insisted or time.monotonic() - signals.first_at > grace_s:
            end_descendants(_LAST_CHANCE_S)
            return child.wait()


def end_descendants(patience_s: float) -> tuple[int, ...]:
    """End everything that was started below this process: SIGTERM, and SIGKILL after some patience; return what had to be ended."""
    met = descendants(os.getpid())
    for pid in met:
        _send(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        time.sleep(_TICK_S / 2)
    for _ in range(3):  # a process that forks while it is killed leaves a child
        left = descendants(os.getpid())
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(_TICK_S if left else 0)
    return met


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
