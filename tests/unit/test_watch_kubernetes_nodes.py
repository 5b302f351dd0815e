"""primus_bootstrap.launch.watch.targets.kubernetes_nodes: which nodes can run a job's pods."""

from __future__ import annotations

from typing import Any

import pytest

from primus_bootstrap.launch.watch.job_spec_kubernetes import Kubernetes, Toleration
from primus_bootstrap.launch.watch.kubernetes_objects import tolerations
from primus_bootstrap.launch.watch.targets import kubernetes_nodes as node_checks

READY = {"type": "Ready", "status": "True"}


def a_node(*taints: str, ready: bool = True, gpus: str = "8") -> dict[str, Any]:
    """Return a node; taints are in kubectl's format."""
    parts = [(key, *value.split(":")) for key, _, value in (one.partition("=") for one in taints)]
    spec = {"taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in parts]}
    offered = {"cpu": "96", "amd.com/gpu": gpus, "rdma/hca": "1k"}
    return {"spec": spec, "status": {"allocatable": offered, "conditions": [READY] if ready else []}}


def wanted(*borne: dict[str, str], **resources: str) -> Kubernetes:
    """Return the settings of pods with eight GPUs and these tolerations."""
    asked = {"cpu": "192", "amd.com/gpu": "8", **{name.replace("_", "/", 1): each for name, each in resources.items()}}
    return Kubernetes("a", "b", resources=asked, tolerations=tuple(Toleration(**one) for one in borne))


@pytest.mark.parametrize(
    ("node", "pods", "expected"),
    [
        (a_node(), wanted(), True),  # The scheduler checks processors.
        (a_node("node-role.kubernetes.io/control-plane=:NoSchedule"), wanted(), False),
        (a_node("team=red:NoExecute"), wanted(), False),
        (a_node("team=red:PreferNoSchedule"), wanted(), True),
        (a_node("team=red:NoSchedule"), wanted({"key": "team", "value": "red"}), True),
        (a_node("team=red:NoSchedule"), wanted({"key": "team", "value": "red", "effect": "NoExecute"}), False),
        (a_node("team=red:NoSchedule"), wanted({"key": "team", "value": "blue"}), False),
        (a_node("team=red:NoSchedule"), wanted({"key": "team", "operator": "Exists"}), True),
        (a_node("team=red:NoSchedule"), wanted({"operator": "Exists"}), True),
        (a_node("amd.com/gpu=present:NoSchedule"), wanted(), True),
        (a_node("node.kubernetes.io/not-ready=:NoExecute", ready=False), wanted(), True),  # it may come back
        (a_node("node.kubernetes.io/unschedulable=:NoSchedule"), wanted(), True),
        (a_node(gpus="7"), wanted(), False),
        (a_node(gpus="0"), wanted(), False),
        (a_node(), wanted(rdma_hca="1"), True),  # a thousand
        (a_node(), wanted(rdma_vf="1"), False),
    ],
)
def test_which_nodes_can_run_the_pods(node: dict[str, Any], pods: Kubernetes, expected: bool) -> None:  # noqa: FBT001
    """Taints and devices decide."""
    assert node_checks.suits(node, pods, tolerations(pods)) is expected


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (a_node(), True),
        (a_node(ready=False), False),
        (a_node("node.kubernetes.io/disk-pressure=:NoSchedule"), False),
        ({**a_node(), "spec": {"unschedulable": True}}, False),
    ],
)
def test_which_nodes_are_usable_now(node: dict[str, Any], expected: bool) -> None:  # noqa: FBT001
    """Not while a node is silent, cordoned or under disk pressure."""
    assert node_checks.usable(node) is expected


def test_a_missing_node_is_not_ready() -> None:
    """It may have been removed from the cluster."""
    assert not node_checks.ready(None)
