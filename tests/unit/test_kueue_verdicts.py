"""Role kueue: verdicts on queues, quotas and topology of a cluster."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.kueue_rig import node, plugin, stated

objects = plugin("kueue", "kueue_objects")
verdicts = plugin("kueue", "kueue_objects")
WANTED = objects.kueue_objects(stated())


def live(status: str = "True") -> list[dict[str, Any]]:
    """Return the objects of a cluster, with active queues."""
    found: list[dict[str, Any]] = copy.deepcopy(WANTED)
    for one in found:
        if one["kind"] in {"ClusterQueue", "LocalQueue"}:
            one["status"] = {"conditions": [{"type": "Active", "status": status, "message": "references missing ResourceFlavor(s)"}]}
    return found


def records_of(check: str, **changed: Any) -> list[dict[str, Any]]:
    """Return the records of a check on a healthy cluster, with changes."""
    overcommit = changed.pop("overcommit", False)
    seen = {"objects": live(), "nodes": [node(f"n{number}") for number in range(8)]} | changed
    return [one for one in verdicts.kueue_verdicts(WANTED, seen, "cp1", overcommit) if one["check"] == check]


def verdicts_of(check: str, **changed: Any) -> list[str]:
    """Return the verdicts only."""
    return [one["verdict"] for one in records_of(check, **changed)]


def test_healthy_cluster_passes() -> None:
    """Active queues, fitting quotas and labelled nodes pass, and no object is surplus."""
    nodes = [node(f"n{number}") for number in range(8)]
    found = verdicts.kueue_verdicts(WANTED, {"objects": live(), "nodes": nodes}, "cp1", overcommit=False)

    assert {one["verdict"] for one in found} == {"pass"}
    assert {one["check"] for one in found} == {"kueue.queue", "kueue.quota", "kueue.topology"}


def test_inactive_queue_fails_with_kueues_message() -> None:
    """A queue without the condition is unknown, a missing one fails."""
    [queue, _] = records_of("kueue.queue", objects=live("False"))

    assert (queue["verdict"], queue["reason"]) == ("fail", "references missing ResourceFlavor(s)")
    assert verdicts_of("kueue.queue", objects=copy.deepcopy(WANTED)) == ["unknown", "unknown"]
    assert verdicts_of("kueue.queue", objects=[]) == ["fail", "fail"]
    assert verdicts_of("kueue.queue", objects=None) == ["unknown", "unknown"]


def test_quotas_above_the_capacity_fail() -> None:
    """64 GPUs on seven nodes of 8 fail. Intended overcommitment is skipped; a node without data is unknown."""
    seven = [node(f"n{number}") for number in range(7)]
    silent = [*seven, node("n7", None)]

    assert verdicts_of("kueue.quota", nodes=seven) == ["fail", "fail"]
    assert verdicts_of("kueue.quota", nodes=seven, overcommit=True) == ["skipped", "skipped"]
    assert verdicts_of("kueue.quota", nodes=silent) == ["unknown", "pass"]
    assert verdicts_of("kueue.quota", nodes=[]) == ["unknown", "unknown"]
    assert verdicts_of("kueue.quota", nodes=None) == ["unknown", "unknown"]


def test_node_without_a_rack_label_is_reported() -> None:
    """Kueue ignores such nodes without a message."""
    nodes = [*(node(f"n{number}") for number in range(7)), node("n7", rack="")]
    [found] = records_of("kueue.topology", nodes=nodes)

    assert (found["verdict"], found["found"]) == ("fail", "not on n7")


def test_surplus_objects_are_reported_and_kept() -> None:
    """An object with our label that hosts.yaml no longer contains gets a fix; foreign ones are ignored."""
    ours, foreign = copy.deepcopy(WANTED[1]), copy.deepcopy(WANTED[1])
    ours["metadata"]["name"] = "former"
    foreign["metadata"] = {"name": "foreign"}
    [found] = records_of("kueue.surplus", objects=[*live(), ours, foreign])

    assert (found["verdict"], found["device"]) == ("skipped", "ResourceFlavor former")
    assert "kubectl delete resourceflavor former" in found["fix"]
