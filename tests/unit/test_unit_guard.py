"""The guard of the unit tests."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import Any

import pytest

from tests.unit.conftest import Guard


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("subprocess.Popen", ("/bin/true", ["true"], None, None)),
        ("os.fork", ()),
        ("os.posix_spawn", ("/bin/true", ["true"], {})),
        ("time.sleep", (0.1,)),
        ("socket.getaddrinfo", ("localhost", 80, 0, 0, 0)),
    ],
)
def test_processes_network_and_sleeps_are_refused(event: str, arguments: tuple[Any, ...]) -> None:
    """The error has the action and a fix. It is stored, because the tested code may catch it."""
    guard = Guard()
    guard(event, arguments)
    guard.watching = True
    with pytest.raises(PermissionError, match=r"a unit test .*Fix: inject"):
        guard(event, arguments)

    assert len(guard.broken) == 1


def test_actions_within_the_process_are_allowed() -> None:
    """Opening files, a sleep of zero, and a file socket."""
    guard = Guard()
    guard.watching = True
    with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_INET) as network:
        guard("socket.bind", (own, "/tmp/x"))  # noqa: S108 - nothing is made
        guard("time.sleep", (0,))
        guard("open", ("/etc/hostname", "r", 0))
        with pytest.raises(PermissionError, match="uses the network"):
            guard("socket.bind", (network, ("127.0.0.1", 0)))


def test_guard_is_active_in_tests(request: pytest.FixtureRequest) -> None:
    """Audit events of any Python function reach it."""
    for forbidden in (lambda: subprocess.run(["true"], check=True), os.fork, lambda: time.sleep(0.01)):
        with pytest.raises(PermissionError, match="a unit test"):
            forbidden()
    (plugin,) = (
        one for one in request.config.pluginmanager.get_plugins() if str(getattr(one, "__file__", "")).endswith("/unit/conftest.py")
    )
    assert len(plugin._GUARD.broken) == 3
    plugin._GUARD.broken.clear()
