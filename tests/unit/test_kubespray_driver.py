"""The role kubespray with a real Ansible at both ends: what it starts, keeps, says and hides; the release is the one of kubespray_rig."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.errors import PlanError
from primus_bootstrap.kubernetes import commands, drive, gate
from primus_bootstrap.kubernetes.commands import Place
from primus_bootstrap.kubernetes.course import State
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
    before = State("commit", "1.34.2", groups, dict.fromkeys(groups["etcd"], "sum"))
    moved = ("cp2", "cp3", "cp1")
    now = replace(before, groups={**groups, "kube_control_plane": moved, "etcd": moved})
    place = Place(tmp_path, tmp_path, tmp_path / "hosts.yaml", tmp_path, tmp_path)
    kubespray = drive.Kubespray(make_cluster(tmp_path, groups), place, tmp_path)
    monkeypatch.setattr(drive, "_now", lambda _: now)
    monkeypatch.setattr(gate, "check", lambda *_: None)
    drive.keep(kubespray, before)

    with pytest.raises(PlanError, match="cp1 is the first host of kube_control_plane"):
        drive.judged(kubespray, commands.remove("cp1"), verb="remove", host="cp1")
    _, state = drive.judged(kubespray, commands.remove_dead("cp1"), verb="forget", host="cp1")
    assert state is not None
    assert state.left == {"cp1": ("kube_control_plane", "etcd")}
    drive.keep(kubespray, now)
    drive.judged(kubespray, commands.remove("cp1"), verb="remove", host="cp1")


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
