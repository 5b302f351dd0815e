"""Module `free_ports`: ports that a role needs are free or used by its own units."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import FakeModule, load_role_module, run_module

free_ports: Any = load_role_module("munge", "free_ports")

# In the format of iproute2 6.1.
SSHD = 'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=7,fd=3))\nLISTEN 0 128 [::]:22 [::]:* users:(("sshd",pid=7,fd=4))\n'
NGINX = 'LISTEN 0 511 0.0.0.0:80 0.0.0.0:* users:(("nginx",pid=12,fd=6),("nginx",pid=11,fd=6))\n'


def host(*ports: int, own: str = "0") -> FakeModule:
    """Return a host on which sshd and nginx listen, and the unit has this main process."""

    def run(words: list[str]) -> tuple[int, str, str]:
        if words[0] == "systemctl":
            return 0, f"{own}\n", ""
        return 0, {"sport = :22": SSHD, "sport = :80": NGINX}.get(words[-1], ""), ""

    given = {"host": "n1", "ports": list(ports), "units": ["x.service"], "fix": "another x_port", "address": "", "address_variable": ""}
    return FakeModule(given, run=run)


@pytest.mark.parametrize("given", [host(8080), host(22, own="7"), host()])
def test_free_ports_and_those_of_the_unit_pass(monkeypatch: pytest.MonkeyPatch, given: FakeModule) -> None:
    """A second apply passes like the first."""
    assert run_module(monkeypatch, free_ports, given) == ("ok", {"changed": False})


def test_every_port_of_another_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names each program once, with its pid, and the variable to change."""
    way, result = run_module(monkeypatch, free_ports, host(22, 8080, 80, own="11"))

    assert way == "failed"
    assert result["msg"] == (
        "Port 22 on n1 is in use by sshd (7). Port 80 on n1 is in use by nginx (12). "
        "Fix: stop that program (`ss -ltnp 'sport = :22'` shows it), or set another x_port."
    )
