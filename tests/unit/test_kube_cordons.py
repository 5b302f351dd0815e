"""What Kubespray cordons in an upgrade: noted before, given back after a kill, and nothing of somebody else's touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.cordons import Cordons, cordoned_by, give_back, read_note
from primus_bootstrap.kubernetes.node_marks import CORDON, annotations_of, is_cordoned, mark_patch, unmark_patch
from tests.unit.kube_nodes_rig import FakeApi, merged, node

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {"kube_control_plane": ("cp1", "cp2"), "etcd": ("cp1", "cp2", "e3"), "kube_node": ("a", "b", "c")}
RECORD = {"owner": "primus-health", "reason": "ill", "time": 1}
CONTROL_PLANES, BATCH = commands.upgrade("1.35.4", workers=[["a", "b"]])[1:]


class KilledError(Exception):
    """Stands in for the end of the process."""


def note(folder: Path, api: FakeApi) -> Cordons:
    """Return the note of a cluster; hosts and Nodes have the same names."""
    return Cordons(folder / "cordons.json", lambda: api, GROUPS, str)


def cut_short(cordons: Cordons, api: FakeApi, command: commands.Command, *cordoned: str) -> None:
    """Let a run cordon these Nodes as Kubespray does, and be killed."""

    def run() -> None:
        with cordons.around(command):
            for name in cordoned:
                api.nodes[name]["spec"]["unschedulable"] = True
            raise KilledError

    with pytest.raises(KilledError):
        run()


def test_who_is_cordoned_is_told_by_the_command() -> None:
    """Groups as their hosts, without those that are left out; nobody by what does not upgrade."""
    renewed = commands.renew_api_servers(["cp2"])[0]

    assert cordoned_by(CONTROL_PLANES, GROUPS) == ("cp1", "cp2", "e3")
    assert cordoned_by(BATCH, GROUPS) == ("a", "b")
    assert cordoned_by(renewed, GROUPS) == ("cp1", "e3")
    assert cordoned_by(commands.create("a,b")[0], GROUPS) == ()


def test_a_killed_run_leaves_no_node_cordoned(tmp_path: Path) -> None:
    """The repeat gives back what took pods before, so that it is drained and given back as any other; then nothing is noted any more."""
    api = FakeApi(node("a"), node("b", unschedulable=True), node("c"))
    cordons = note(tmp_path, api)
    cut_short(cordons, api, BATCH, "a", "b")
    seen = {}
    with cordons.around(BATCH):
        seen = {name: is_cordoned(found) for name, found in api.nodes.items()}

    assert seen == {"a": False, "b": True, "c": False}, "b was cordoned by somebody else"
    assert not cordons.path.exists()


def test_control_planes_come_back_too_and_the_workers_batch_is_still_known(tmp_path: Path) -> None:
    """A second kill, while control planes are repeated, forgets neither what it cordoned nor which workers are not done."""
    api = FakeApi(node("cp1"), node("cp2"), node("a"), node("b"))
    cordons = note(tmp_path, api)
    cut_short(cordons, api, BATCH, "a")
    cut_short(cordons, api, CONTROL_PLANES, "cp2")

    assert not is_cordoned(api.nodes["a"])
    assert read_note(cordons.path) == {"taking": ["cp1", "cp2"], "unfinished": ["a", "b", "cp1", "cp2"]}
    with cordons.around(CONTROL_PLANES):
        assert not is_cordoned(api.nodes["cp2"])
    assert read_note(cordons.path) == {"taking": [], "unfinished": ["a", "b"]}


def test_without_anything_to_run_they_come_back_as_well(tmp_path: Path) -> None:
    """As after an apply whose change was taken back; the next upgrade still finishes them."""
    api = FakeApi(node("a"), node("b"))
    cordons = note(tmp_path, api)
    cut_short(cordons, api, BATCH, "a")
    cordons.settle()

    assert not is_cordoned(api.nodes["a"])
    assert read_note(cordons.path) == {"taking": [], "unfinished": ["a", "b"]}
    changes = list(api.calls)
    cordons.settle()
    assert api.calls == changes


def test_a_node_that_fell_ill_meanwhile_stays_out_until_its_mark_goes() -> None:
    """The cordon was Kubespray's when the mark came, so nobody would have lifted it: it becomes ours, and goes with the mark."""
    ill = node("a", unschedulable=True)
    ill = merged(ill, mark_patch(ill, "health", RECORD))
    assert CORDON not in annotations_of(ill)

    kept = merged(ill, give_back(ill))
    well = merged(kept, unmark_patch(kept, "health"))

    assert (is_cordoned(kept), is_cordoned(well)) == (True, False)
    assert give_back(kept) is None
    assert give_back(well) is None


def test_a_note_that_cannot_be_read_stops_the_run(tmp_path: Path) -> None:
    """Whose a cordon is cannot be told then; it says what to look at."""
    (tmp_path / "cordons.json").write_text(json.dumps({"taking": 7}), encoding="utf-8")

    with pytest.raises(RunError, match="which Nodes an upgrade that was cut short has cordoned is not known") as caught:
        note(tmp_path, FakeApi()).begin(["a"])
    assert "kubectl get nodes" in caught.value.fix
