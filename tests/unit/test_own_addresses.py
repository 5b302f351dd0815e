"""Module `own_addresses`: whether other hosts reach a service at the address on which it listens."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.unit.role_module import FakeModule, load_role_module, run_module

free_ports: Any = load_role_module("munge", "free_ports")
own_addresses: Any = sys.modules["ansible.module_utils.own_addresses"]  # the one that free_ports imported
records: Any = sys.modules["ansible.module_utils.verdict_records"]

NAMES = {"n1": "10.0.0.1", "moved": "10.0.0.7", "debian": "127.0.1.1"}


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host have the address 10.0.0.1 and know the names above."""
    monkeypatch.setattr(own_addresses, "resolved_address", lambda name: NAMES.get(name, name if name[0].isdecimal() else ""))
    monkeypatch.setattr(own_addresses, "is_own", lambda address: address == "10.0.0.1")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("10.0.0.1", ""),
        ("n1", ""),
        ("::", ""),
        ("0.0.0.0", ""),  # noqa: S104 - an argument
        ("127.0.0.1", ""),
        ("localhost", ""),
        ("10.0.0.7", "10.0.0.7 is not an address of n1."),
        ("moved", "10.0.0.7 (moved) is not an address of n1."),
        ("debian", "debian is 127.0.1.1 on n1, which other hosts cannot reach."),
        ("unknown", "n1 cannot resolve unknown."),
    ],
)
def test_a_service_listens_where_others_reach_it(address: str, problem: str) -> None:
    """An address of another host, a name of loopback and an unknown name are problems; loopback itself is a decision."""
    assert own_addresses.listen_problem(address, "n1") == problem


@pytest.mark.parametrize(("address", "refused"), [("10.0.0.1", False), ("debian", False), ("unknown", False), ("moved", True)])
def test_names_without_an_address_pass_before_anything_changes(address: str, refused: bool) -> None:  # noqa: FBT001 - parametrized
    """The role baseline writes the names of the hosts into /etc/hosts, after the preflight checks."""
    assert bool(own_addresses.foreign_problem(address, "n1")) is refused


def test_a_changed_address_stops_the_role_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module free_ports names the address, the host and what to set, before a unit is changed."""
    given = {"host": "n1", "ports": [], "units": [], "fix": "another x_port", "address": "10.0.0.7", "address_variable": "x_bind_address"}

    way, result = run_module(monkeypatch, free_ports, FakeModule(given))

    assert (way, result.get("msg")) == (
        "failed",
        f"10.0.0.7 is not an address of n1. Fix: {own_addresses.listen_fix('n1', 'x_bind_address')}.",
    )


def test_verify_says_that_the_address_changed() -> None:
    """The verdict has the reason and the fix."""
    verdicts = records.Verdicts("prometheus", "n1")

    own_addresses.check_address(verdicts, "10.0.0.1", "n1", "prometheus_bind_address")
    own_addresses.check_address(verdicts, "10.0.0.7", "n1", "prometheus_bind_address")

    assert [one["verdict"] for one in verdicts.records] == ["pass", "fail"]
    assert (verdicts.records[1]["check"], verdicts.records[1]["reason"]) == ("prometheus.address", "10.0.0.7 is not an address of n1")
    assert verdicts.records[1]["fix"].endswith("or set prometheus_bind_address")
