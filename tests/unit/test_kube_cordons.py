"""Test that Nodes are uncordoned after an interrupted upgrade, and that cordons of others stay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.cordons import Cordons, cordoned_by, read_cordon_record, uncordon_patch
from primus_bootstrap.kubernetes.node_marks import CORDON, annotations_of, is_cordoned, mark_patch, unmark_patch
from tests.unit.kube_nodes_rig import FakeApi, merged, node

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {"kube_control_plane": ("cp1", "cp2"), "etcd": ("cp1", "cp2", "e3"), "kube_node": ("a", "b", "c")}
RECORD = {"owner": "primus-health", "reason": "ill", "time": 1}
CONTROL_PLANES, BATCH = commands.upgrade("1.35.4", workers=[["a", "b"]])[1:]


class KilledError(Exception):
    """Replaces the end of the process."""


def cordons_of(folder: Path, api: FakeApi) -> Cordons:
    """Return the record of a cluster whose hosts and Nodes have the same names."""
    return Cordons(folder / "cordons.json", lambda: api, GROUPS, str)


def interrupt(cordons: Cordons, api: FakeApi, command: commands.Command, *cordoned: str) -> None:
    """Cordon these Nodes like Kubespray, and end the run with an error."""

    def run() -> None:
        with cordons.around(command):
            for name in cordoned:
                api.nodes[name]["spec"]["unschedulable"] = True
            raise KilledError

    with pytest.raises(KilledError):
        run()


def test_cordoned_hosts_follow_from_the_command() -> None:
    """The limit is expanded to hosts without the excluded ones; other playbooks cordon nothing."""
    renewed = commands.renew_api_servers(["cp2"])[0]

    assert cordoned_by(CONTROL_PLANES, GROUPS) == ("cp1", "cp2", "e3")
    assert cordoned_by(BATCH, GROUPS) == ("a", "b")
    assert cordoned_by(renewed, GROUPS) == ("cp1", "e3")
    assert cordoned_by(commands.create("a,b")[0], GROUPS) == ()


def test_killed_run_leaves_no_node_cordoned(tmp_path: Path) -> None:
    """The next run uncordons the Nodes that were schedulable, and a successful run removes the record."""
    api = FakeApi(node("a"), node("b", unschedulable=True), node("c"))
    cordons = cordons_of(tmp_path, api)
    interrupt(cordons, api, BATCH, "a", "b")
    seen = {}
    with cordons.around(BATCH):
        seen = {name: is_cordoned(found) for name, found in api.nodes.items()}

    assert seen == {"a": False, "b": True, "c": False}, "b was cordoned by somebody else"
    assert not cordons.path.exists()


def test_record_survives_a_second_kill(tmp_path: Path) -> None:
    """After a second kill, the record still has the cordoned Nodes and the unfinished workers."""
    api = FakeApi(node("cp1"), node("cp2"), node("a"), node("b"))
    cordons = cordons_of(tmp_path, api)
    interrupt(cordons, api, BATCH, "a")
    interrupt(cordons, api, CONTROL_PLANES, "cp2")

    assert not is_cordoned(api.nodes["a"])
    assert read_cordon_record(cordons.path) == {"taking": ["cp1", "cp2"], "unfinished": ["a", "b", "cp1", "cp2"]}
    with cordons.around(CONTROL_PLANES):
        assert not is_cordoned(api.nodes["cp2"])
    assert read_cordon_record(cordons.path) == {"taking": [], "unfinished": ["a", "b"]}


def test_nodes_are_uncordoned_without_a_run(tmp_path: Path) -> None:
    """`restore` uncordons the Nodes, and the record keeps the unfinished ones."""
    api = FakeApi(node("a"), node("b"))
    cordons = cordons_of(tmp_path, api)
    interrupt(cordons, api, BATCH, "a")
    cordons.restore()

    assert not is_cordoned(api.nodes["a"])
    assert read_cordon_record(cordons.path) == {"taking": [], "unfinished": ["a", "b"]}
    changes = list(api.calls)
    cordons.restore()
    assert api.calls == changes


def test_node_with_a_mark_stays_cordoned() -> None:
    """Kubespray's cordon becomes the project's and is removed with the last mark."""
    ill = node("a", unschedulable=True)
    ill = merged(ill, mark_patch(ill, "health", RECORD))
    assert CORDON not in annotations_of(ill)

    kept = merged(ill, uncordon_patch(ill))
    well = merged(kept, unmark_patch(kept, "health"))

    assert (is_cordoned(kept), is_cordoned(well)) == (True, False)
    assert uncordon_patch(kept) is None
    assert uncordon_patch(well) is None


def test_damaged_record_stops_the_run(tmp_path: Path) -> None:
    """The owner of a cordon is then unknown; the fix lists what to check."""
    (tmp_path / "cordons.json").write_text(json.dumps({"taking": 7}), encoding="utf-8")

    with pytest.raises(RunError, match="the Nodes that an interrupted upgrade cordoned are unknown") as caught:
        cordons_of(tmp_path, FakeApi()).begin(["a"])
    assert "kubectl get nodes" in caught.value.fix
