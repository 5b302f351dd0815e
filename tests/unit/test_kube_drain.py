"""How a Node is emptied: jobs may end, budgets are respected, lone pods are refused, and what is in the way is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.drain import Drain, DrainOptions, forget, sort_pods
from primus_bootstrap.kubernetes.node_marks import mark_of, mark_patch
from tests.unit.kube_nodes_rig import FakeApi, node, pod

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = {"owner": "primus-bootstrap", "reason": "reboot", "time": 1, "host": "gpu1"}


class Clock:
    """A clock that only waiting moves; `then` is called at each wait."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        """Begin at 0."""
        self.now = 0.0
        self.then = then

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.then()


def drain(api: FakeApi, clock: Clock | None = None, *, force: bool = False, dry_run: bool = False) -> bool:
    """Empty gpu1: jobs have 100 s, evictions 20 s."""
    clock = clock or Clock()
    return Drain(api, "gpu1", DrainOptions(100, 20, force=force), clock=clock, wait=clock.wait).run(RECORD, dry_run=dry_run)


def test_pods_are_told_apart() -> None:
    """DaemonSets' and the kubelet's own stay, ended ones count for nothing."""
    mirror = pod("etcd", "Node")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    pods = [pod("ds", "DaemonSet"), mirror, pod("j", "Job"), pod("done", "Job", phase="Succeeded"), pod("web"), pod("lone", "")]
    found = sort_pods(pods)

    assert (found.staying, found.jobs, found.movable, found.lone) == (("x/ds", "x/etcd"), ("x/j",), ("x/web",), ("x/lone",))


def test_an_empty_node_is_cordoned_and_the_second_time_changes_nothing() -> None:
    """Only a DaemonSet's pod is left; it stays."""
    api = FakeApi(node(), pods=(pod("ds", "DaemonSet"),))

    assert drain(api)
    assert not drain(api)
    assert (api.calls, mark_of(api.nodes["gpu1"], "drain")["reason"]) == (["patch gpu1"], "reboot")


@pytest.mark.parametrize(("mark", "drained"), [("health", True), ("quarantine", False)])
def test_a_node_that_is_out_for_its_health_is_drained_by_name(mark: str, *, drained: bool) -> None:
    """Its health may pass while jobs are waited for, and new pods would start; a quarantine stays until a person lifts it."""
    api = FakeApi(node())
    api.patch("/api/v1/nodes/gpu1", mark_patch(node(), mark, RECORD) or {})

    assert drain(api) is drained
    assert bool(mark_of(api.nodes["gpu1"], "drain")) is drained


def test_pods_are_evicted_in_the_servers_own_version() -> None:
    """Kubernetes before 1.22 only knows v1beta1, and says so."""
    api = FakeApi(node(), pods=(pod("web"), pod("elsewhere", on="gpu2")))

    assert drain(api)
    assert api.calls == ["patch gpu1", "evict web policy/v1beta1"]


def test_a_budget_that_holds_is_named_with_its_pod() -> None:
    """Until the time is over it is tried again; then the pod and the budget's own words are in the message, and the Node stays cordoned."""
    api = FakeApi(node(), pods=(pod("web"), pod("free")))
    api.held = {"web"}
    clock = Clock()

    with pytest.raises(
        RunError, match=r"gpu1 is not empty: .*within 20 s: x/web \(a disruption budget holds it: The disruption budget web"
    ):
        drain(api, clock)
    assert clock.now == 20
    assert "evict free policy/v1beta1" in api.calls
    assert api.nodes["gpu1"]["spec"]["unschedulable"]


def test_a_budget_that_lets_go_is_waited_for() -> None:
    """As soon as another replica is there, the eviction goes through."""
    api = FakeApi(node(), pods=(pod("web"),))
    api.held = {"web"}

    assert drain(api, Clock(api.held.clear))


def test_a_pod_that_does_not_end_is_named() -> None:
    """It was evicted and is still there: a finalizer, or a process that does not end."""
    api = FakeApi(node(), pods=(pod("web"),))
    api.stuck = {"web"}

    with pytest.raises(RunError, match=r"x/web \(it was told to end and has not\)"):
        drain(api)


def test_a_lone_pod_is_refused_before_anything_is_evicted_and_goes_by_force() -> None:
    """Nobody would start it again, so a person has to say so."""
    api = FakeApi(node(), pods=(pod("web"), pod("lone", "")))

    with pytest.raises(RunError, match="pods that nobody would start again: x/lone"):
        drain(api)
    assert api.calls == ["patch gpu1"]
    assert drain(api, force=True)
    assert api.pods == []


def test_jobs_may_end_by_themselves() -> None:
    """A job that ends in time is not evicted; one that does not is refused by name, and goes by force."""
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


def test_a_dead_node_is_not_waited_for_by_force() -> None:
    """Nothing can end on it; its pods go with its object, which is deleted next."""
    dead = node()
    dead["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    api = FakeApi(dead, pods=(pod("web"), pod("lone", "")))

    assert drain(api, force=True)
    assert forget(api, "gpu1")
    assert not forget(api, "gpu1")
    assert api.calls == ["patch gpu1", "delete gpu1"]


@pytest.mark.parametrize("found", [None, node("other")])
def test_a_node_that_is_not_there_is_empty(found: dict[str, Any] | None) -> None:
    """A host that never joined, or has left already."""
    assert not drain(FakeApi(*([found] if found else [])))


def test_a_dry_run_changes_nothing() -> None:
    """It says that something would be."""
    api = FakeApi(node(), pods=(pod("web"),))

    assert drain(api, dry_run=True)
    assert api.calls == []
