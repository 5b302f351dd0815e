"""Test the runner of Kubespray and the role kubespray with a real Ansible and the release of kubespray_rig."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.kubernetes import commands, preflight, runner
from primus_bootstrap.kubernetes.commands import KubesprayPaths
from primus_bootstrap.kubernetes.reconcile import ClusterState
from tests.integration.kubespray_rig import joining
from tests.unit.engine_rig import make_cluster
from tests.unit.kueue_rig import plugin

if TYPE_CHECKING:
    from pathlib import Path

# Ansible starts five times for one run of Kubespray: alone some ten seconds, minutes where many tests share two cores.
pytestmark = pytest.mark.timeout(900)


def test_first_host_is_not_removed_before_an_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that moved only in hosts.yaml is refused by `remove`; `forget` accepts it if it is dead."""
    groups = {"kube_control_plane": ("cp1", "cp2", "cp3"), "etcd": ("cp1", "cp2", "cp3"), "kube_node": (), "calico_rr": ()}
    before = ClusterState("commit", "1.34.2", groups, dict.fromkeys(groups["etcd"], "sum"))
    moved = ("cp2", "cp3", "cp1")
    now = replace(before, groups={**groups, "kube_control_plane": moved, "etcd": moved})
    paths = KubesprayPaths(tmp_path, tmp_path, tmp_path / "hosts.yaml", tmp_path, tmp_path, "v2.31.0")
    kubespray = runner.Kubespray(make_cluster(tmp_path, groups), paths, tmp_path)
    monkeypatch.setattr(runner, "_current_state", lambda _: now)
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    runner.save_state(kubespray, before)

    with pytest.raises(PlanError, match="cp1 is the first host of kube_control_plane"):
        runner.check_commands(kubespray, commands.remove("cp1"), verb="remove", host="cp1")
    _, state = runner.check_commands(kubespray, commands.remove_dead("cp1"), verb="forget", host="cp1")
    assert state is not None
    assert state.left == {"cp1": ("kube_control_plane", "etcd")}
    runner.save_state(kubespray, now)
    runner.check_commands(kubespray, commands.remove("cp1"), verb="remove", host="cp1")


@pytest.mark.parametrize(
    ("server", "addresses", "wanted"),
    [
        ("https://10.0.0.9:6443", ["10.0.0.1", "192.168.0.1"], "https://10.0.0.1:6443"),
        ("https://192.168.0.1:6443", ["10.0.0.1", "192.168.0.1"], ""),
        ("https://[fd00::9]:8443", ["fd00::1"], "https://[fd00::1]:8443"),
        ("https://lb.example.com:6443", ["10.0.0.1"], ""),
        ("https://10.0.0.9:6443", [], ""),
    ],
)
def test_wrong_address_of_the_first_control_plane_is_corrected(server: str, addresses: list[str], wanted: str) -> None:
    """The name of a load balancer stays; without a known address nothing is written."""
    found = plugin("kubespray", "kubespray").kubespray_cluster_info(joining(server), addresses)

    assert found == (joining(wanted) if wanted else "")


def _event(kind: str, **data: object) -> bytes:
    return json.dumps({"event": kind, "event_data": data}).encode() + b"\n"


def test_events_are_counted(tmp_path: Path) -> None:
    """The outcome has the number of changes and the last failure of each host. Damaged lines are skipped."""
    path = tmp_path / "events"
    ok = _event("runner_on_ok", host="n1", task="t", res={"changed": True, "padding": "x" * 1000})
    with path.open("wb") as file:
        file.write(_event("runner_on_ok", host="n1", task="of an earlier run", res={"changed": True}))
        begin = file.tell()
        for _ in range(10_000):
            file.write(ok)
        file.write(b'{"event": "runner_on_ok", "eve\n[]\n\xff\n' + b"[" * 100_000 + b"\n")
        file.write(_event("runner_on_ok", host="n2", task="t", res={"changed": False}))
        for why in ("first", "second"):
            file.write(_event("runner_on_failed", host="n2", task="Install", res={"msg": why}))
        file.write(_event("runner_on_failed", host="n3", task="Ask", res={"msg": "m"}, ignore_errors=True))
        file.write(_event("playbook_on_stats", failures={"n2": 1}, dark={"n4": 1}))
    tracemalloc.start()
    outcome = runner.read_outcome(path, begin)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert outcome.changed == 10_000
    assert outcome.failures() == "n2: Install: second; n4: failed"
    assert peak_bytes < path.stat().st_size / 10


def test_run_without_events_has_no_changes(tmp_path: Path) -> None:
    """A run that ends before the first event has an empty outcome."""
    outcome = runner.read_outcome(tmp_path / "none", 0)

    assert (outcome.changed, outcome.failures()) == (0, "")


def test_last_lines_of_a_log_are_read(tmp_path: Path) -> None:
    """The last two lines are returned for a long log and for bytes that are not UTF-8."""
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 1_000_000 + b"cause \xff\nlast\n\n")

    assert runner._last_lines(path) == ["cause \N{REPLACEMENT CHARACTER}", "last"]
