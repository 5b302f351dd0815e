"""The role kueue: what is said of queues, quotas and topology once they stand."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.kueue_rig import node, plugin, stated

objects = plugin("kueue", "kueue_objects")
verdicts = plugin("kueue", "kueue_verdicts")
WANTED = objects.kueue_objects(stated())


def live(status: str = "True") -> list[dict[str, Any]]:
    """Return the objects as a cluster has them, queues with the condition Active."""
    found: list[dict[str, Any]] = copy.deepcopy(WANTED)
    for one in found:
        if one["kind"] in {"ClusterQueue", "LocalQueue"}:
            one["status"] = {"conditions": [{"type": "Active", "status": status, "message": "references missing ResourceFlavor(s)"}]}
    return found


def judge(check: str, **changed: Any) -> list[dict[str, Any]]:
    """Return the records of a check on a cluster in order, with changes."""
    overcommit = changed.pop("overcommit", False)
    seen = {"objects": live(), "nodes": [node(f"n{number}") for number in range(8)]} | changed
    return [one for one in verdicts.kueue_verdicts(WANTED, seen, "cp1", overcommit) if one["check"] == check]


def words(check: str, **changed: Any) -> list[str]:
    """Return the verdicts alone."""
    return [one["verdict"] for one in judge(check, **changed)]


def test_a_cluster_in_order_passes() -> None:
    """Active queues, quotas that fit and labelled nodes pass, and nothing is surplus."""
    nodes = [node(f"n{number}") for number in range(8)]
    found = verdicts.kueue_verdicts(WANTED, {"objects": live(), "nodes": nodes}, "cp1", overcommit=False)

    assert {one["verdict"] for one in found} == {"pass"}
    assert {one["check"] for one in found} == {"kueue.queue", "kueue.quota", "kueue.topology"}


def test_a_queue_that_is_not_active_fails_with_kueues_words() -> None:
    """Kueue's message is the reason; a queue without the condition is unknown, one that is missing fails."""
    [queue, _] = judge("kueue.queue", objects=live("False"))

    assert (queue["verdict"], queue["reason"]) == ("fail", "references missing ResourceFlavor(s)")
    assert words("kueue.queue", objects=copy.deepcopy(WANTED)) == ["unknown", "unknown"]
    assert words("kueue.queue", objects=[]) == ["fail", "fail"]
    assert words("kueue.queue", objects=None) == ["unknown", "unknown"]


def test_quotas_beyond_the_nodes_are_said() -> None:
    """64 GPUs on seven nodes of 8 fail; where it is meant so it is skipped; where a node is silent it is unknown."""
    seven = [node(f"n{number}") for number in range(7)]
    silent = [*seven, node("n7", None)]

    assert words("kueue.quota", nodes=seven) == ["fail", "fail"]
    assert words("kueue.quota", nodes=seven, overcommit=True) == ["skipped", "skipped"]
    assert words("kueue.quota", nodes=silent) == ["unknown", "pass"]
    assert words("kueue.quota", nodes=[]) == ["unknown", "unknown"]
    assert words("kueue.quota", nodes=None) == ["unknown", "unknown"]


def test_a_node_without_its_rack_is_named() -> None:
    """Kueue passes over a node that lacks a level's label, without a word; the verdict names it."""
    nodes = [*(node(f"n{number}") for number in range(7)), node("n7", rack="")]
    [found] = judge("kueue.topology", nodes=nodes)

    assert (found["verdict"], found["found"]) == ("fail", "not on n7")


def test_objects_that_nobody_states_are_named_and_kept() -> None:
    """An object with our mark that hosts.yaml no longer states is reported with the way to delete it; a foreign one is not."""
    ours, foreign = copy.deepcopy(WANTED[1]), copy.deepcopy(WANTED[1])
    ours["metadata"]["name"] = "former"
    foreign["metadata"] = {"name": "foreign"}
    [found] = judge("kueue.surplus", objects=[*live(), ours, foreign])

    assert (found["verdict"], found["device"]) == ("skipped", "ResourceFlavor former")
    assert "kubectl delete resourceflavor former" in found["fix"]
