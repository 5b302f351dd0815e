"""Test the probe script: its checks, and that it is a single file for Python 3.9."""

from __future__ import annotations

import ast
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = content.roles_dir() / "preflight/files/probe_host.py"
CHECK: dict[str, Any] = {
    "host": "h1", "supported_os": ["debian 12", "rocky 9"], "min_python": "3.9", "min_memory_gib": 2, "disk_paths": ["/"],
    "min_disk_gib": 5, "require_time_sync": False, "min_mtu": 1280, "names": [], "ports": [], "skip": {},
    "become": None, "sent": 1000.0,
}  # fmt: skip
FACTS: dict[str, Any] = {
    "os": {"id": "debian", "version": "12", "name": "Debian 12"}, "python": "3.11.2", "sudo": "yes", "sudo_message": "",
    "clock": {"read_at": 1000.1, "synchronised": True}, "memory": {"total_gib": 8.0}, "machine_id": "0" * 32,
    "disks": [{"path": "/", "free_gib": 50.0, "free_inodes_percent": 90.0, "read_only": False}],
    "listening": [], "nics": [{"name": "eth0", "mtu": 1500}], "default_nic": "eth0", "resolved": {"h1": ["127.0.0.1"]},
}  # fmt: skip


@pytest.fixture
def script() -> ModuleType:
    """Load the script as a module."""
    return load_file(SCRIPT)


def verdicts_of(script: ModuleType, facts: dict[str, Any], **check: Any) -> dict[str, dict[str, Any]]:
    """Check changed facts, and return the records by check."""
    return {record["check"]: record for record in script.evaluate({**FACTS, **facts}, {**CHECK, **check})}


def test_script_has_the_grammar_of_python_3_9() -> None:
    """The script parses with the grammar of Python 3.9."""
    assert ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_good_host_passes(script: ModuleType) -> None:
    """Every check passes, without reason and fix."""
    records = verdicts_of(script, {})

    assert {record["verdict"] for record in records.values()} == {"pass"}
    assert {record["reason"] + record["fix"] for record in records.values()} == {""}


@pytest.mark.parametrize(
    ("check", "facts", "verdict", "reason"),
    [
        ("os", {"os": {"id": "debian", "version": "11", "name": "Debian 11"}}, "fail", "Debian 11 is not a tested distribution"),
        ("os", {"os": {"id": "rocky", "version": "9.4", "name": "Rocky"}}, "pass", ""),
        ("os", {"os": {"id": "rocky", "version": "95", "name": "Rocky 95"}}, "fail", "Rocky 95"),
        ("os", {"os": {"id": "", "version": "", "name": ""}}, "unknown", "no /etc/os-release"),
        ("python", {"python": "3.8.10"}, "fail", "Python 3.8.10 is too old"),
        ("python", {"python": "3.10.1"}, "pass", ""),
        ("sudo", {"sudo": "no", "sudo_message": "joe is not in the sudoers file"}, "fail", "not in the sudoers file"),
        ("time_sync", {"clock": {"read_at": 1000.0, "synchronised": False}}, "skipped", "no time service"),
        ("time_sync", {"clock": {"read_at": 1000.0, "synchronised": None}}, "unknown", "does not tell"),
        (
            "disk",
            {"disks": [{"path": "/", "free_gib": 4.9, "free_inodes_percent": None, "read_only": False}]},
            "fail",
            "4.9 GiB free, 5 are",
        ),
        ("disk", {"disks": [{"path": "/", "free_gib": 90, "free_inodes_percent": 0.2, "read_only": False}]}, "fail", "inodes"),
        ("disk", {"disks": [{"path": "/", "free_gib": 90, "free_inodes_percent": 50, "read_only": True}]}, "fail", "read-only"),
        ("disk", {"disks": []}, "skipped", "there is no /"),
        ("memory", {"memory": {"total_gib": 1.9}}, "fail", "1.9 GiB of memory, 2 are needed"),
        ("memory", {"memory": {"total_gib": 0}}, "unknown", "no MemTotal"),
        ("machine_id", {"machine_id": ""}, "fail", "empty or missing"),
        ("machine_id", {"machine_id": "uninitialized"}, "fail", "malformed"),
        ("mtu", {"nics": [{"name": "eth0", "mtu": 576}]}, "fail", "eth0 has MTU 576"),
        ("mtu", {"default_nic": ""}, "unknown", "no IPv4 default route"),
        ("name_resolution", {"resolved": {"h1": []}}, "fail", "h1 has no address"),
        ("name_resolution", {"resolved": {"h1": None}}, "unknown", "no answer within"),
    ],
)
def test_each_check_reports_its_result(script: ModuleType, check: str, facts: dict[str, Any], verdict: str, reason: str) -> None:
    """Each check reports pass, fail, unknown and skipped, with the reason."""
    record = verdicts_of(script, facts)[check]

    assert record["verdict"] == verdict
    assert reason in record["reason"]
    assert bool(record["fix"]) == (verdict in ("fail", "unknown"))


@pytest.mark.parametrize(
    ("version", "accepted", "verdict", "fix"),
    [
        ("24.04", {}, "fail", "set preflight_untested_os: true"),
        ("24.04", {"untested_os": True}, "unknown", "apply to one host first"),
        ("12", {"untested_os": True}, "pass", ""),
    ],
)
def test_untested_distribution_must_be_accepted(
    script: ModuleType, version: str, accepted: dict[str, bool], verdict: str, fix: str
) -> None:
    """With preflight_untested_os it is unknown, which preflight shows as a warning. A tested one passes as usual."""
    name = "debian" if version == "12" else "ubuntu"
    found = verdicts_of(script, {"os": {"id": name, "version": version, "name": f"{name} {version}"}}, **accepted)["os"]

    assert (found["verdict"], fix in found["fix"]) == (verdict, True)


def test_time_sync_can_be_required(script: ModuleType) -> None:
    """With preflight_require_time_sync a missing time service fails instead of being skipped."""
    facts = {"clock": {"read_at": 1000.0, "synchronised": False}}

    assert verdicts_of(script, facts, require_time_sync=True)["time_sync"]["verdict"] == "fail"


def test_result_of_ansible_overrides_sudo(script: ModuleType) -> None:
    """Ansible's attempt to become root overrides the result of sudo without a password."""
    yes = verdicts_of(script, {"sudo": "wants_password"}, become={"works": True, "message": ""})["sudo"]
    no = verdicts_of(script, {"sudo": "root"}, become={"works": False, "message": "Missing sudo password"})["sudo"]

    assert (yes["verdict"], no["verdict"]) == ("pass", "fail")
    assert "Missing sudo password" in no["reason"]


def test_skipped_check_has_a_reason(script: ModuleType) -> None:
    """A check that the site disables is skipped with the site's reason."""
    record = verdicts_of(script, {"memory": {"total_gib": 0.5}}, skip={"memory": "a test bed"})["memory"]

    assert (record["verdict"], record["reason"], record["fix"]) == ("skipped", "a test bed", "")


def test_name_lookup_has_a_time_limit(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer makes the name unknown after the time limit."""
    monkeypatch.setattr(script, "LOOKUP_TIMEOUT_S", 0.2)

    over = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    started = time.monotonic()

    assert script.resolve(["a", "b"]) == {"a": None, "b": None}
    assert time.monotonic() - started < 1.0
    over.set()
