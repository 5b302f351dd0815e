"""Test the drain of a Node: jobs, disruption budgets, pods without a controller, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.drain import Drain, DrainOptions, delete_node, sort_pods
from primus_bootstrap.kubernetes.node_marks import mark_of, mark_patch
from tests.unit.kube_nodes_rig import FakeApi, node, pod

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = {"owner": "primus-bootstrap", "reason": "reboot", "time": 1, "host": "gpu1"}


class Clock:
    """A clock that advances only in `wait`; `then` is called at each wait."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        """Start at 0."""
        self.now = 0.0
        self.then = then

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        self.then()


def drain(api: FakeApi, clock: Clock | None = None, *, force: bool = False, dry_run: bool = False) -> bool:
    """Drain gpu1 with 100 s for jobs and 20 s for evictions."""
    clock = clock or Clock()
    return Drain(api, "gpu1", DrainOptions(100, 20, force=force), clock=clock, wait=clock.wait).run(RECORD, dry_run=dry_run)


def test_pods_are_classified() -> None:
    """Pods of DaemonSets, static pods and ended pods are in no class: they are not evicted."""
    mirror = pod("etcd", "Node")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    pods = [pod("ds", "DaemonSet"), mirror, pod("j", "Job"), pod("done", "Job", phase="Succeeded"), pod("web"), pod("lone", "")]
    found = sort_pods(pods)

    assert (found.jobs, found.movable, found.lone) == (("x/j",), ("x/web",), ("x/lone",))


def test_empty_node_is_cordoned_once() -> None:
    """A pod of a DaemonSet stays; a second drain changes nothing."""
    api = FakeApi(node(), pods=(pod("ds", "DaemonSet"),))

    assert drain(api)
    assert not drain(api)
    assert (api.calls, mark_of(api.nodes["gpu1"], "drain")["reason"]) == (["patch gpu1"], "reboot")


@pytest.mark.parametrize(("mark", "drained"), [("health", True), ("quarantine", False)])
def test_node_with_a_health_mark_gets_a_drain_mark(mark: str, *, drained: bool) -> None:
    """The health mark may be removed during the drain; a quarantine stays, so it needs no drain mark."""
    api = FakeApi(node())
    api.patch("/api/v1/nodes/gpu1", mark_patch(node(), mark, RECORD) or {})

    assert drain(api) is drained
    assert bool(mark_of(api.nodes["gpu1"], "drain")) is drained


def test_eviction_uses_the_servers_api_version() -> None:
    """Kubernetes before 1.22 needs policy/v1beta1."""
    api = FakeApi(node(), pods=(pod("web"), pod("elsewhere", on="gpu2")))

    assert drain(api)
    assert api.calls == ["patch gpu1", "evict web policy/v1beta1"]


def test_blocking_budget_is_reported() -> None:
    """The eviction is retried until the time limit; the error has the pod and the budget's message, and the Node stays cordoned."""
    api = FakeApi(node(), pods=(pod("web"), pod("free")))
    api.held = {"web"}
    clock = Clock()

    with pytest.raises(
        RunError, match=r"gpu1 is not empty: .*after 20 s: x/web \(a disruption budget forbids the eviction: The disruption budget web"
    ):
        drain(api, clock)
    assert clock.now == 20
    assert "evict free policy/v1beta1" in api.calls
    assert api.nodes["gpu1"]["spec"]["unschedulable"]


def test_eviction_is_retried() -> None:
    """The eviction succeeds when the budget allows it."""
    api = FakeApi(node(), pods=(pod("web"),))
    api.held = {"web"}

    assert drain(api, Clock(api.held.clear))


def test_pod_that_does_not_end_is_reported() -> None:
    """The error names a pod that was evicted and still exists."""
    api = FakeApi(node(), pods=(pod("web"),))
    api.stuck = {"web"}

    with pytest.raises(RunError, match=r"x/web \(it was evicted and has not ended\)"):
        drain(api)


def test_pod_without_a_controller_needs_force() -> None:
    """Without force the drain fails before any eviction."""
    api = FakeApi(node(), pods=(pod("web"), pod("lone", "")))

    with pytest.raises(RunError, match="pods without a controller, which nothing would restart: x/lone"):
        drain(api)
    assert api.calls == ["patch gpu1"]
    assert drain(api, force=True)
    assert api.pods == []


def test_jobs_are_waited_for() -> None:
    """A job that ends in time is not evicted; another one fails the drain, or is evicted with force."""
    api = FakeApi(node(), pods=(pod("train", "Job"),))
    clock = Clock()

    with pytest.raises(RunError, match="jobs that did not end within 100 s: x/train"):
        drain(api, clock)
    assert clock.now == 100
    ending = Clock(api.pods.clear)
    assert not drain(api, ending)
    assert not any("evict" in call for call in api.calls)
    api.pods = [pod("train", "Job")]
    assert drain(api, force=True)


def test_dead_node_is_not_drained_with_force() -> None:
    """Its pods are deleted with the Node."""
    dead = node()
    dead["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    api = FakeApi(dead, pods=(pod("web"), pod("lone", "")))

    assert drain(api, force=True)
    assert delete_node(api, "gpu1")
    assert not delete_node(api, "gpu1")
    assert api.calls == ["patch gpu1", "delete gpu1"]


@pytest.mark.parametrize("found", [None, node("other")])
def test_missing_node_is_empty(found: dict[str, Any] | None) -> None:
    """A host without a Node needs no drain."""
    assert not drain(FakeApi(*([found] if found else [])))


def test_dry_run_changes_nothing() -> None:
    """A dry run returns whether anything would change."""
    api = FakeApi(node(), pods=(pod("web"),))

    assert drain(api, dry_run=True)
    assert api.calls == []
