"""Verification of a Kubernetes cluster: nodes, versions, etcd, certificates and a test pod."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.role_module import load_role_module

effects = load_role_module("kubespray", "kubespray_effects")
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def verdict_list(records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return check, host and verdict of each record."""
    return [(one["check"], one["host"], one["verdict"]) for one in records]


def test_missing_and_unready_nodes_are_reported() -> None:
    """Each fails on its own host; all versions are compared."""
    found = {"a": (True, "v1.35.4"), "b": (False, "v1.35.4"), "other": (True, "v1.35.4")}

    assert verdict_list(effects.node_records(found, {"a": "", "b": "", "c": "c.site"}, "1.35.4")) == [
        ("kubernetes.node", "b", "fail"),
        ("kubernetes.node", "c", "fail"),
        ("kubernetes.versions", "kubernetes", "pass"),
    ]


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
    found = {str(number): (True, version) for number, version in enumerate(versions)}
    records = effects.node_records(found, dict.fromkeys(found, ""), wanted)

    assert verdict_list(records) == [("kubernetes.node", "kubernetes", "pass"), ("kubernetes.versions", "kubernetes", verdict)]


@pytest.mark.parametrize(("days", "verdict"), [(300, "pass"), (21, "pass"), (20, "fail"), (-1, "fail"), (None, "unknown")])
def test_certificates(days: int | None, verdict: str) -> None:
    """Fails three weeks before expiry; unreadable is unknown."""
    ends = None if days is None else NOW + dt.timedelta(days=days, hours=1)

    assert effects.certificate_record("api", ends, NOW)["verdict"] == verdict


@pytest.mark.parametrize(("status", "verdict"), [(200, "pass"), (500, "fail"), (0, "unknown")])
def test_etcd(status: int, verdict: str) -> None:
    """The API server's answer decides; no answer is unknown."""
    assert effects.etcd_record(status, "said")["verdict"] == verdict


class Core:
    """An API that returns one pod phase after another."""

    def __init__(self, *phases: str, waiting: str = "", why: str = "") -> None:
        """Store the phases."""
        self.phases, self.waiting, self.why, self.removed = list(phases), waiting, why, False

    def create_namespaced_pod(self, *_: Any, **__: Any) -> None:
        """Accept or reject the pod."""
        if not self.phases:
            raise OSError("no room")

    def read_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        """Return the next phase."""
        state = SimpleNamespace(waiting=SimpleNamespace(reason=self.waiting, message="not there")) if self.waiting else None
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        return SimpleNamespace(
            status=SimpleNamespace(phase=phase, reason=self.why, conditions=[], container_statuses=[SimpleNamespace(state=state)])
        )

    def delete_namespaced_pod(self, *_: Any, **__: Any) -> None:
        """Record the deletion."""
        self.removed = True


@pytest.mark.parametrize(
    ("core", "verdict", "reason"),
    [
        (Core("Pending", "Running", "Succeeded"), "pass", ""),
        (Core("Running", "Failed"), "fail", ""),
        (Core("Pending", waiting="ImagePullBackOff"), "unknown", "ImagePullBackOff: not there"),
        (Core("Failed", why="DeadlineExceeded", waiting="ErrImagePull"), "unknown", "ErrImagePull: not there"),
        (Core(), "unknown", "the API rejected the pod: no room"),
    ],
)
def test_the_pod(core: Core, verdict: str, reason: str) -> None:
    """An unresolved name fails; an unavailable image is unknown. The pod is always removed."""
    got = effects.run_pod(core, "busybox", 1, (OSError,), sleep=lambda _: None)

    assert (got["verdict"], got.get("reason", "")) == (verdict, reason)
    assert core.removed


def test_pod_has_minimal_rights() -> None:
    """No token, no privileges, no root, and a deadline."""
    spec = effects.pod_body("x", "busybox", 60)["spec"]

    assert spec["activeDeadlineSeconds"] == 60
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["securityContext"]["runAsNonRoot"] is True
