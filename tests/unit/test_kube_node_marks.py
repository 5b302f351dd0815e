"""Test marks on Nodes: record, cordon and taint, removed by their owner only."""

from __future__ import annotations

import json
from typing import Any

from primus_bootstrap.kubernetes import node_quarantine
from primus_bootstrap.kubernetes.node_marks import CORDON, mark_of, mark_patch, unmark_patch
from primus_bootstrap.kubernetes.node_states import state_of
from tests.unit.kube_nodes_rig import FakeApi, merged, node

RECORD = {"host": "gpu1", "owner": "ada", "reason": "fan broken", "time": 1000.0}
BENCH = {**RECORD, "owner": "primus-bench", "reason": "bench pending"}


def marked(found: dict[str, Any], mark: str = "quarantine", record: dict[str, Any] = RECORD) -> dict[str, Any]:
    """Return a Node with a mark."""
    return dict(merged(found, mark_patch(found, mark, record) or {}))


def unmarked(found: dict[str, Any], mark: str = "quarantine") -> dict[str, Any]:
    """Return a Node without a mark."""
    return dict(merged(found, unmark_patch(found, mark) or {}))


def test_mark_is_set_and_removed() -> None:
    """After a mark is removed, the Node is unchanged; setting the same mark twice changes nothing."""
    out = marked(node())

    assert out["spec"] == {"unschedulable": True, "taints": [{"key": "primus-bootstrap.io/quarantine", "effect": "NoSchedule"}]}
    assert mark_of(out, "quarantine") == RECORD
    assert mark_patch(out, "quarantine", RECORD) is None
    back = unmarked(out)
    assert (back["spec"], back["metadata"]["annotations"]) == ({}, {})
    assert unmark_patch(back, "quarantine") is None


def test_foreign_cordon_stays() -> None:
    """A cordon that existed before the mark stays after it."""
    out = marked(node(unschedulable=True))

    assert CORDON not in out["metadata"]["annotations"]
    assert unmarked(out)["spec"] == {"unschedulable": True}


def test_cordon_stays_until_the_last_mark_is_removed() -> None:
    """With a quarantine and a health mark, removing one does not uncordon the Node."""
    out = marked(marked(node()), "health", {**RECORD, "owner": "primus-health"})

    assert unmarked(out)["spec"]["unschedulable"]
    assert unmarked(unmarked(out), "health")["spec"] == {}


def test_removed_cordon_is_not_patched() -> None:
    """If a person uncordoned the Node, removing the mark does not patch the cordon."""
    out = marked(node())
    del out["spec"]["unschedulable"]

    assert (unmark_patch(out, "quarantine") or {})["spec"] == {"taints": None}


def test_taints_of_others_stay() -> None:
    """Setting and removing a mark does not change other taints."""
    other = {"key": "theirs", "value": "x", "effect": "NoExecute"}

    assert unmarked(marked(node(taints=[other])))["spec"] == {"taints": [other]}


def test_record_of_another_owner_stays() -> None:
    """A quarantine of a person is neither overwritten nor removed by the benchmark; a missing Node is skipped."""
    api = FakeApi(marked(node()), node("gpu2"))

    assert node_quarantine.set_quarantines(api, {"gpu1": {**BENCH}, "gpu2": {**BENCH, "host": "gpu2"}, "gpu3": BENCH}) == ["gpu2"]
    assert node_quarantine.lift_quarantines(api, ["gpu1", "gpu2"], owner="primus-bench") == ["gpu2"]
    assert mark_of(api.nodes["gpu1"], "quarantine")["owner"] == "ada"
    assert api.nodes["gpu2"]["spec"] == {}


def test_dry_run_changes_nothing() -> None:
    """A dry run returns the Nodes that would change."""
    api = FakeApi(node())

    assert node_quarantine.set_quarantines(api, {"gpu1": RECORD}, dry_run=True) == ["gpu1"]
    assert api.calls == []


def test_record_is_read_from_the_node() -> None:
    """The result has the record and the time; a missing Node has no time, and a damaged record is a problem."""
    damaged = node("gpu3")
    damaged["metadata"]["annotations"] = {"primus-bootstrap.io/quarantine": "{"}
    api = FakeApi(marked(node()), damaged)

    assert node_quarantine.read_record(api, "gpu1")["record"] == RECORD
    assert "now" not in node_quarantine.read_record(api, "gpu2")
    assert "cannot be read" in node_quarantine.read_record(api, "gpu3")["problem"]
    assert node_quarantine.lift_quarantines(api, ["gpu3"], owner="primus-bench") == []


def test_all_marks_are_removed() -> None:
    """All marks and the project's cordon are removed."""
    api = FakeApi(marked(marked(node()), "drain"), node("gpu2", unschedulable=True))

    assert node_quarantine.lift_all(api, ["gpu1", "gpu2"]) == ["gpu1"]
    assert (api.nodes["gpu1"]["spec"], api.nodes["gpu2"]["spec"]) == ({}, {"unschedulable": True})


def test_state_of_a_node() -> None:
    """The state is ready, cordoned with its reason, cordoned by another person, not ready or missing."""
    dead = node()
    dead["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]

    assert state_of(node()).state == "ready"
    seen = state_of(marked(node(), record=BENCH))
    assert (seen.state, seen.reason, seen.quarantine["owner"]) == ("cordoned", "quarantine: bench pending (primus-bench)", "primus-bench")
    assert state_of(node(unschedulable=True)).state == "cordoned by somebody else"
    assert (state_of(dead).state, state_of(dead).reason) == ("not ready", "Kubelet stopped posting node status.")
    assert state_of(None).state == "no node"
    assert json.loads(json.dumps(seen.quarantine)) == BENCH
