"""Role kueue: validation of queues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kueue_rig import plugin, stated

kueue = plugin("kueue", "kueue")
QUOTA = {"flavor": "mi300x", "resources": {"amd.com/gpu": 64}}


def rules(**changed: Any) -> list[str]:
    """Return the rules that the variables violate."""
    return [rule for _, _, _, rule in kueue.findings(stated(**changed))]


def queue(**changed: Any) -> list[dict[str, Any]]:
    """Return the single queue of a cluster, with changes."""
    return [{"name": "training", "cohort": "cluster", "quotas": [QUOTA]} | changed]


def test_valid_queues_are_accepted() -> None:
    """Empty variables are accepted too."""
    assert rules() == []
    assert kueue.findings({}) == []


@pytest.mark.parametrize(
    ("changed", "rule", "says"),
    [
        ({"kueue_cluster_queues": queue(quotas=[{**QUOTA, "flavor": "mi355x"}])}, "kueue-unknown-flavor", "no such flavor: mi355x"),
        ({"kueue_cluster_queues": queue(quotas=[{**QUOTA, "resources": {"amd.com/gpu": "64 GPUs"}}])}, "kueue-quantity", "64 GPUs"),
        ({"kueue_cluster_queues": queue(quotas=[{**QUOTA, "resources": {"amd.com/gpu": True}}])}, "kueue-quantity", "True"),
        ({"kueue_cluster_queues": queue(quotas=[{**QUOTA, "resources": {}}])}, "kueue-quota", "has no resources"),
        ({"kueue_cluster_queues": queue(quotas=[QUOTA, QUOTA])}, "kueue-quota", "two quotas of the flavor mi300x"),
        ({"kueue_cluster_queues": queue(quotas=[], cohort=None)}, "kueue-quota", "no job could ever start"),
        ({"kueue_cluster_queues": queue(cohort=None, quotas=[{**QUOTA, "borrowing_limits": {"amd.com/gpu": 8}}])}, "kueue-quota", "cohort"),
        ({"kueue_cluster_queues": queue(quotas=[{**QUOTA, "lending_limits": {"cpu": 8}}])}, "kueue-quota", "cpu without a quota"),
        ({"kueue_cluster_queues": [*queue(), *queue()]}, "kueue-twice", "training more than once"),
        ({"kueue_cluster_queues": queue(name="Training_1"), "kueue_local_queues": []}, "kueue-name", "Training_1"),
        ({"kueue_cluster_queues": queue(borrow_within_cohort="LowerPriority"), "kueue_fair_sharing": True}, "kueue-preemption", "fair"),
        (
            {"kueue_cluster_queues": queue(borrow_within_cohort="LowerPriority", reclaim_within_cohort="Never")},
            "kueue-preemption",
            "reclaim_within_cohort is Never",
        ),
        ({"kueue_cluster_queues": queue(namespaces=["team-b"])}, "kueue-namespace", "accepts jobs of team-b only"),
        (
            {"kueue_local_queues": [{"name": "a", "namespace": "b", "cluster_queue": "train"}]},
            "kueue-unknown-queue",
            "no such queue: train",
        ),
        ({"kueue_local_queues": 2 * [{"name": "a", "namespace": "b", "cluster_queue": "training"}]}, "kueue-twice", "a in b"),
        ({"kueue_local_queues": [{"name": "a", "namespace": "B.c", "cluster_queue": "training"}]}, "kueue-name", "B.c"),
        ({"kueue_topology_levels": ["example.com/rack", "example.com/rack"]}, "kueue-level", "more than once"),
        ({"kueue_topology_levels": ["kubernetes.io/hostname", "example.com/rack"]}, "kueue-level", "is not the last level"),
        ({"kueue_topology_levels": ["the rack"]}, "kueue-level", "the rack"),
        ({"kueue_flavors": [{"name": "mi300x"}]}, "kueue-flavor-nodes", "neither a model nor node_labels"),
        (
            {"kueue_flavors": [{"name": name, "model": "MI300X"} for name in ("mi300x", "again")]},
            "kueue-flavor-nodes",
            "have the same nodes",
        ),
        ({"kueue_priorities": [{"name": "high", "value": 2**31}]}, "kueue-priority", "32 bits"),
        ({"kueue_cohorts": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}, "kueue-cohort", "a -> b"),
        ({"kueue_cohorts": [{"name": "a", "quotas": [{**QUOTA, "lending_limits": {"amd.com/gpu": 8}}]}]}, "kueue-quota", "parent"),
    ],
)
def test_invalid_queues_are_refused(changed: dict[str, Any], rule: str, says: str) -> None:
    """Kueue would reject them, or their jobs would wait for ever. Each finding has a fix."""
    found = kueue.findings(stated(**changed))

    assert [one[3] for one in found] == [rule]
    assert says in found[0][1]
    assert found[0][2]
    assert kueue.kueue_findings(stated(**changed)) == [f"{found[0][1]}. Fix: {found[0][2]}"]


def test_flavors_with_a_common_resource_must_share_all() -> None:
    """Kueue groups flavors by resource and cannot represent a partial overlap."""
    flavors = [{"name": "mi300x", "model": "MI300X"}, {"name": "mi325x", "model": "MI325X"}]
    quotas = [QUOTA, {"flavor": "mi325x", "resources": {"amd.com/gpu": 8, "memory": "1Ti"}}]

    found = kueue.findings(stated(kueue_flavors=flavors, kueue_cluster_queues=queue(quotas=quotas)))

    assert [one[3] for one in found] == ["kueue-quota"]
    assert "mi300x and mi325x share amd.com/gpu" in found[0][1]


@pytest.mark.parametrize(
    "changed",
    [
        {"kueue_cluster_queues": queue(quotas={"flavor": "mi300x"})},
        {"kueue_cluster_queues": queue(quotas=["mi300x"])},
        {"kueue_cluster_queues": queue(quotas=[{**QUOTA, "resources": ["amd.com/gpu"], "borrowing_limits": 3}])},
        {"kueue_cluster_queues": ["training"]},
        {"kueue_cohorts": [{"name": ["a"], "parent": {"b": 1}}]},
        {"kueue_topology_levels": 3},
        {"kueue_flavors": [{"name": "a", "model": ["x"], "node_labels": ["y"]}]},
        {"kueue_local_queues": "training"},
    ],
)
def test_values_of_another_type_do_not_stop_the_checks(changed: dict[str, Any]) -> None:
    """The argument specs report the type; the other problems of the file are still reported."""
    assert all(isinstance(rule, str) for rule in rules(**changed))
