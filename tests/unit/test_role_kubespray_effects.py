"""Verification of a Kubernetes cluster: nodes, versions, etcd, certificates and a test pod."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kueue_rig import plugin
from tests.unit.role_module import load_role_module

load_role_module("kube_common", "kube_list")  # whose code the module uses
effects = load_role_module("kubespray", "kubespray_effects")
filters = plugin("kubespray", "kubespray")


def listed(**nodes: tuple[bool, str]) -> dict[str, Any]:
    """Return the result of kube_list for Nodes that are ready or not and have a version."""
    found = [
        {
            "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}], "nodeInfo": {"kubeletVersion": version}},
        }
        for name, (ready, version) in nodes.items()
    ]
    return {"found": {"Node": found}, "errors": []}


def verdict_list(records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return check, host and verdict of each record."""
    return [(one["check"], one["host"], one["verdict"]) for one in records]


def test_missing_and_unready_nodes_are_reported() -> None:
    """Each fails on its own host; all versions are compared."""
    found = listed(a=(True, "v1.35.4"), b=(False, "v1.35.4"), other=(True, "v1.35.4"))

    assert verdict_list(filters.kubespray_node_verdicts(found, {"a": "", "b": "", "c": "c.site"}, "1.35.4")) == [
        ("kubernetes.node", "b", "fail"),
        ("kubernetes.node", "c", "fail"),
        ("kubernetes.versions", "kubernetes", "pass"),
    ]


def test_nodes_that_cannot_be_read_are_unknown() -> None:
    """The reason is that of the API server."""
    found = filters.kubespray_node_verdicts({"found": {"Node": None}, "errors": ["no answer"]}, {"a": ""}, "")

    assert [(one["verdict"], one["reason"]) for one in found] == [("unknown", "no answer")]


@pytest.mark.parametrize(
    ("versions", "wanted", "verdict"),
    [
        (("v1.35.4", "v1.35.4"), "1.35.4", "pass"),
        (("v1.35.4", "v1.34.2"), "1.35.4", "fail"),
        (("v1.34.2", "v1.34.2"), "1.35.4", "fail"),
        (("v1.20.2", "v1.20.2"), "", "pass"),
        (("v1.20.2", "v1.21.0"), "", "fail"),
    ],
)
def test_versions(versions: tuple[str, str], wanted: str, verdict: str) -> None:
    """All equal the version in hosts.yaml or, in an existing cluster, each other."""
    found = listed(a=(True, versions[0]), b=(True, versions[1]))
    records = filters.kubespray_node_verdicts(found, {"a": "", "b": ""}, wanted)

    assert verdict_list(records) == [("kubernetes.node", "kubernetes", "pass"), ("kubernetes.versions", "kubernetes", verdict)]


@pytest.mark.parametrize(("days", "verdict"), [(300.5, "pass"), (21.0, "pass"), (20.9, "fail"), (-1.0, "fail"), (None, "unknown")])
def test_certificates(days: float | None, verdict: str) -> None:
    """Fails three weeks before expiry; unreadable is unknown."""
    assert effects.certificate_record("api", days)["verdict"] == verdict


@pytest.mark.parametrize(("status", "verdict"), [(200, "pass"), (500, "fail"), (0, "unknown")])
def test_etcd(status: int, verdict: str) -> None:
    """The API server's answer decides; no answer is unknown."""
    assert effects.etcd_record(status, "said")["verdict"] == verdict


class Cluster:
    """A cluster that returns one pod phase after another, and rejects the pod if there is none."""

    def __init__(self, *phases: str, waiting: str = "", why: str = "") -> None:
        """Store the phases."""
        self.phases, self.waiting, self.why, self.dry_run = list(phases), waiting, why, False
        self.removed: list[str] = []

    def apply(self, _: dict[str, Any]) -> None:
        """Accept or reject the pod."""
        if not self.phases:
            raise effects.RefusedError("no room")

    def live(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return the pod with the next phase."""
        waiting = {"reason": self.waiting, "message": "not there"} if self.waiting else {}
        containers = [{"name": "resolve", "state": {"waiting": waiting}}]
        phase = self.phases.pop(0) if len(self.phases) > 1 else "".join(self.phases)
        return {**pod, "status": {"phase": phase, "reason": self.why, "containerStatuses": containers}}

    def delete(self, pod: dict[str, Any]) -> None:
        """Record the deletion."""
        self.removed.append(pod["kind"])


@pytest.mark.parametrize(
    ("cluster", "verdict", "reason"),
    [
        (Cluster("Pending", "Running", "Succeeded"), "pass", ""),
        (Cluster("Running", "Failed"), "fail", ""),
        (Cluster("Pending"), "unknown", "it did not end within 1 s (Pending)"),
        (Cluster("Pending", waiting="ImagePullBackOff"), "unknown", "resolve: ImagePullBackOff not there"),
        (Cluster("Failed", why="DeadlineExceeded", waiting="ErrImagePull"), "unknown", "resolve: ErrImagePull not there"),
        (Cluster(), "unknown", "no room"),
    ],
)
def test_the_pod(cluster: Cluster, verdict: str, reason: str) -> None:
    """An unresolved name fails; an unavailable image is unknown. The pod is always removed."""
    got = effects.run_pod(cluster, "busybox", 1, sleep=lambda _: None)

    assert (got["verdict"], got.get("reason", "")) == (verdict, reason)
    assert cluster.removed == ["Pod"]


def test_pod_has_minimal_rights() -> None:
    """No token, no privileges, no root, and a deadline."""
    spec = effects.pod_body("x", "busybox", 60)["spec"]

    assert spec["activeDeadlineSeconds"] == 60
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["securityContext"]["runAsNonRoot"] is True
