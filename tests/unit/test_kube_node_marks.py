"""Marks on Nodes: cordon and taint with an owner, lifted by that owner alone; somebody else's cordon is never touched."""

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


def test_a_mark_is_a_record_a_taint_and_a_cordon_and_goes_without_a_trace() -> None:
    """Set, and taken off again, a Node is what it was; the same mark twice changes nothing."""
    out = marked(node())

    assert out["spec"] == {"unschedulable": True, "taints": [{"key": "primus-bootstrap.io/quarantine", "effect": "NoSchedule"}]}
    assert mark_of(out, "quarantine") == RECORD
    assert mark_patch(out, "quarantine", RECORD) is None
    back = unmarked(out)
    assert (back["spec"], back["metadata"]["annotations"]) == ({}, {})
    assert unmark_patch(back, "quarantine") is None


def test_a_foreign_cordon_stays() -> None:
    """Who cordoned the Node before us finds it cordoned after us."""
    out = marked(node(unschedulable=True))

    assert CORDON not in out["metadata"]["annotations"]
    assert unmarked(out)["spec"] == {"unschedulable": True}


def test_the_cordon_stays_until_the_last_mark_goes() -> None:
    """A host that is quarantined and ill is put back by neither alone."""
    out = marked(marked(node()), "health", {**RECORD, "owner": "primus-health"})

    assert unmarked(out)["spec"]["unschedulable"]
    assert unmarked(unmarked(out), "health")["spec"] == {}


def test_a_cordon_that_a_person_lifted_is_not_lifted_twice() -> None:
    """Taking the mark off then only removes what is left of it."""
    out = marked(node())
    del out["spec"]["unschedulable"]

    assert (unmark_patch(out, "quarantine") or {})["spec"] == {"taints": None}


def test_taints_of_others_stay() -> None:
    """Setting and lifting a mark leaves their order and values alone."""
    other = {"key": "theirs", "value": "x", "effect": "NoExecute"}

    assert unmarked(marked(node(taints=[other])))["spec"] == {"taints": [other]}


def test_another_owners_record_stands() -> None:
    """The bench neither overwrites nor lifts what a person has quarantined; a missing Node is passed over."""
    api = FakeApi(marked(node()), node("gpu2"))

    assert node_quarantine.keep(api, {"gpu1": {**BENCH}, "gpu2": {**BENCH, "host": "gpu2"}, "gpu3": BENCH}) == ["gpu2"]
    assert node_quarantine.release(api, ["gpu1", "gpu2"], owner="primus-bench") == ["gpu2"]
    assert mark_of(api.nodes["gpu1"], "quarantine")["owner"] == "ada"
    assert api.nodes["gpu2"]["spec"] == {}


def test_a_dry_run_says_what_would_be_and_changes_nothing() -> None:
    """Check mode names the Nodes."""
    api = FakeApi(node())

    assert node_quarantine.keep(api, {"gpu1": RECORD}, dry_run=True) == ["gpu1"]
    assert api.calls == []


def test_what_the_node_knows_is_a_copy_of_the_record() -> None:
    """Looked at, it says record and time; a Node that is not there could keep none; a damaged one is a problem, and nobody's."""
    damaged = node("gpu3")
    damaged["metadata"]["annotations"] = {"primus-bootstrap.io/quarantine": "{"}
    api = FakeApi(marked(node()), damaged)

    assert node_quarantine.look(api, "gpu1")["record"] == RECORD
    assert "now" not in node_quarantine.look(api, "gpu2")
    assert "cannot be read" in node_quarantine.look(api, "gpu3")["problem"]
    assert node_quarantine.release(api, ["gpu3"], owner="primus-bench") == []


def test_everything_of_ours_goes_at_reset() -> None:
    """All marks at once, with our cordon."""
    api = FakeApi(marked(marked(node()), "drain"), node("gpu2", unschedulable=True))

    assert node_quarantine.clear(api, ["gpu1", "gpu2"]) == ["gpu1"]
    assert (api.nodes["gpu1"]["spec"], api.nodes["gpu2"]["spec"]) == ({}, {"unschedulable": True})


def test_states_in_words() -> None:
    """Ready, cordoned by us with the reason, by somebody else, not ready, and not there."""
    dead = node()
    dead["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]

    assert state_of(node()).state == "ready"
    seen = state_of(marked(node(), record=BENCH))
    assert (seen.state, seen.reason, seen.quarantine["owner"]) == ("cordoned", "quarantine: bench pending (primus-bench)", "primus-bench")
    assert state_of(node(unschedulable=True)).state == "cordoned by somebody else"
    assert (state_of(dead).state, state_of(dead).reason) == ("not ready", "Kubelet stopped posting node status.")
    assert state_of(None).state == "no node"
    assert json.loads(json.dumps(seen.quarantine)) == BENCH
