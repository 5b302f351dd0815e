"""Unit tests must not use processes, the network or sleeps. A violation fails the test, even if the tested code catches the error."""

from __future__ import annotations

import socket
import sys
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.ansible import view

if TYPE_CHECKING:
    from collections.abc import Generator

# Audit events of CPython: https://docs.python.org/3/library/audit_events.html
_FORBIDDEN = {
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "subprocess.Popen": "starts a process",
    "socket.bind": "uses the network",
    "socket.connect": "uses the network",
    "socket.getaddrinfo": "uses the network",
    "time.sleep": "sleeps",
}
_MOVE = "inject the clock, runner or connection, or move the test to tests/integration"


class Guard:
    """The violations of the current test."""

    def __init__(self) -> None:
        """Start inactive."""
        self.watching = False
        self.broken: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse and store a forbidden event: the tested code may catch the error."""
        if not self.watching or event not in _FORBIDDEN:
            return
        if event == "time.sleep" and (not arguments[0] or threading.current_thread() is not threading.main_thread()):
            return  # A thread of a library; a sleep of zero lets other threads run.
        if event in ("socket.bind", "socket.connect") and arguments[0].family == socket.AF_UNIX:
            return  # A file socket in the test's folder.
        words = f"{_FORBIDDEN[event]}: {event}{arguments[:2]!r:.200}"
        self.broken.append(words)
        raise PermissionError(f"a unit test {words}. Fix: {_MOVE}")


_GUARD = Guard()
# CPython cannot remove the hook. Outside of unit tests it does nothing.
sys.addaudithook(_GUARD)


@cache
def _import_ansible() -> None:
    """Import Ansible before a test is watched: the import calls `socket.getaddrinfo`."""
    view.use_shipped_settings()
    view.make_loader()


_REAL_SLEEP = time.sleep


def _sleep(seconds: float, /) -> None:
    """Replace `time.sleep`, which raises no audit event before Python 3.13."""
    _GUARD("time.sleep", (seconds,))
    _REAL_SLEEP(seconds)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the test itself; session fixtures are not restricted."""
    _import_ansible()
    _GUARD.broken.clear()
    _GUARD.watching = True
    injected = time.sleep  # A fixture may have replaced it.
    if injected is _REAL_SLEEP:
        time.sleep = _sleep  # type: ignore[assignment]
    try:
        result = yield
    finally:
        _GUARD.watching = False
        time.sleep = injected
    if _GUARD.broken:
        pytest.fail(f"{item.nodeid} {_GUARD.broken[0]}. Fix: {_MOVE}", pytrace=False)
    return result
