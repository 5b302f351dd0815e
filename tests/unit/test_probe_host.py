"""The script that runs on hosts: what it reads from a tree, how it judges, and that it travels alone."""

from __future__ import annotations

import ast
import importlib.util
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content

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
    spec = importlib.util.spec_from_file_location("probe_host", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts_of(script: ModuleType, facts: dict[str, Any], **check: Any) -> dict[str, dict[str, Any]]:
    """Judge facts that differ from good ones, and return the records by check."""
    return {record["check"]: record for record in script.judge({**FACTS, **facts}, {**CHECK, **check})}


def test_python_3_9_understands_it() -> None:
    """Nothing newer than Python 3.9, the oldest of the supported systems, is in the script's grammar."""
    assert ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_a_good_host_passes(script: ModuleType) -> None:
    """With everything in order every check passes, without reason or fix."""
    records = verdicts_of(script, {})

    assert {record["verdict"] for record in records.values()} == {"pass"}
    assert {record["reason"] + record["fix"] for record in records.values()} == {""}


@pytest.mark.parametrize(
    ("check", "facts", "verdict", "reason"),
    [
        ("os", {"os": {"id": "debian", "version": "11", "name": "Debian 11"}}, "fail", "Debian 11 is not a supported system"),
        ("os", {"os": {"id": "rocky", "version": "9.4", "name": "Rocky"}}, "pass", ""),
        ("os", {"os": {"id": "rocky", "version": "95", "name": "Rocky 95"}}, "fail", "Rocky 95"),
        ("os", {"os": {"id": "", "version": "", "name": ""}}, "unknown", "no /etc/os-release"),
        ("python", {"python": "3.8.10"}, "fail", "Python 3.8.10 is too old"),
        ("python", {"python": "3.10.1"}, "pass", ""),
        ("sudo", {"sudo": "no", "sudo_message": "joe is not in the sudoers file"}, "fail", "not in the sudoers file"),
        ("time_sync", {"clock": {"read_at": 1000.0, "synchronised": False}}, "skipped", "no time service"),
        ("time_sync", {"clock": {"read_at": 1000.0, "synchronised": None}}, "unknown", "does not say"),
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
        ("memory", {"memory": {"total_gib": 0}}, "unknown", "does not say"),
        ("machine_id", {"machine_id": ""}, "fail", "empty or missing"),
        ("machine_id", {"machine_id": "uninitialized"}, "fail", "malformed"),
        ("mtu", {"nics": [{"name": "eth0", "mtu": 576}]}, "fail", "eth0 has MTU 576"),
        ("mtu", {"default_nic": ""}, "unknown", "no IPv4 default route"),
        ("name_resolution", {"resolved": {"h1": []}}, "fail", "h1 has no address"),
        ("name_resolution", {"resolved": {"h1": None}}, "unknown", "no answer within"),
    ],
)
def test_what_is_wrong_is_said(script: ModuleType, check: str, facts: dict[str, Any], verdict: str, reason: str) -> None:
    """Each check tells pass, fail, unknown and skipped apart, and says why."""
    record = verdicts_of(script, facts)[check]

    assert record["verdict"] == verdict
    assert reason in record["reason"]
    assert bool(record["fix"]) == (verdict in ("fail", "unknown"))


def test_time_sync_is_demanded_where_the_site_says_so(script: ModuleType) -> None:
    """What is skipped by default fails where preflight_require_time_sync is on."""
    facts = {"clock": {"read_at": 1000.0, "synchronised": False}}

    assert verdicts_of(script, facts, require_time_sync=True)["time_sync"]["verdict"] == "fail"


def test_what_ansible_found_out_about_sudo_counts(script: ModuleType) -> None:
    """Where Ansible has tried to become root, its result stands above what sudo says without a password."""
    yes = verdicts_of(script, {"sudo": "wants_password"}, become={"works": True, "message": ""})["sudo"]
    no = verdicts_of(script, {"sudo": "root"}, become={"works": False, "message": "Missing sudo password"})["sudo"]

    assert (yes["verdict"], no["verdict"]) == ("pass", "fail")
    assert "Missing sudo password" in no["reason"]


def test_a_skipped_check_keeps_its_reason(script: ModuleType) -> None:
    """What a site leaves out is neither passed nor failed."""
    record = verdicts_of(script, {"memory": {"total_gib": 0.5}}, skip={"memory": "a test bed"})["memory"]

    assert (record["verdict"], record["reason"], record["fix"]) == ("skipped", "a test bed", "")


def test_a_look_up_that_hangs_ends(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that gives no answer costs the script's patience and no more, and the name is unknown."""
    monkeypatch.setattr(script, "PATIENCE_S", 0.2)

    over = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    started = time.monotonic()

    assert script.resolve(["a", "b"]) == {"a": None, "b": None}
    assert time.monotonic() - started < 1.0
    over.set()
