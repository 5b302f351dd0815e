"""The role kubespray with a real Ansible at both ends: what it starts, keeps, says and hides; the release is the one of kubespray_rig."""

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
from tests.unit.engine_rig import make_cluster
from tests.unit.kubespray_rig import joining
from tests.unit.kueue_rig import plugin

if TYPE_CHECKING:
    from pathlib import Path

# Ansible starts five times for one run of Kubespray: alone some ten seconds, minutes where many tests share two cores.
pytestmark = pytest.mark.timeout(900)


def test_a_first_host_that_only_hosts_yaml_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are not told yet, and Kubespray would lose its origin. One that is dead is forgotten without it: the play would fail."""
    groups = {"kube_control_plane": ("cp1", "cp2", "cp3"), "etcd": ("cp1", "cp2", "cp3"), "kube_node": (), "calico_rr": ()}
    before = ClusterState("commit", "1.34.2", groups, dict.fromkeys(groups["etcd"], "sum"))
    moved = ("cp2", "cp3", "cp1")
    now = replace(before, groups={**groups, "kube_control_plane": moved, "etcd": moved})
    place = KubesprayPaths(tmp_path, tmp_path, tmp_path / "hosts.yaml", tmp_path, tmp_path)
    kubespray = runner.Kubespray(make_cluster(tmp_path, groups), place, tmp_path)
    monkeypatch.setattr(runner, "_now", lambda _: now)
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    runner.keep(kubespray, before)

    with pytest.raises(PlanError, match="cp1 is the first host of kube_control_plane"):
        runner.judged(kubespray, commands.remove("cp1"), verb="remove", host="cp1")
    _, state = runner.judged(kubespray, commands.remove_dead("cp1"), verb="forget", host="cp1")
    assert state is not None
    assert state.left == {"cp1": ("kube_control_plane", "etcd")}
    runner.keep(kubespray, now)
    runner.judged(kubespray, commands.remove("cp1"), verb="remove", host="cp1")


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
def test_an_address_that_is_not_the_firsts_is_put_right(server: str, addresses: list[str], wanted: str) -> None:
    """A name is a load balancer's and stays; where nobody knows the first one's address, nothing is written."""
    found = plugin("kubespray", "kubespray").kubespray_cluster_info(joining(server), addresses)

    assert found == (joining(wanted) if wanted else "")


def _event(kind: str, **data: object) -> bytes:
    return json.dumps({"event": kind, "event_data": data}).encode() + b"\n"


def test_events_of_kubespray_are_counted_without_keeping_them(tmp_path: Path) -> None:
    """A fleet has gigabytes of them: what is kept is a count, and of each host that failed the last reason. Damaged lines are left out."""
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


def test_a_run_of_kubespray_without_events_has_changed_nothing(tmp_path: Path) -> None:
    """It ended before the first one; the log is what is left to quote."""
    outcome = runner.read_outcome(tmp_path / "none", 0)

    assert (outcome.changed, outcome.failures()) == (0, "")


def test_the_end_of_a_log_is_read_whatever_its_size_and_bytes(tmp_path: Path) -> None:
    """Two lines are quoted, and neither a bad byte nor a long log stands in the way."""
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 1_000_000 + b"cause \xff\nlast\n\n")

    assert runner._last_lines(path) == ["cause \N{REPLACEMENT CHARACTER}", "last"]
