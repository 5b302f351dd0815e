"""The target `kubernetes` and the restart policy for attempts that do not start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from primus_bootstrap.launch.diagnose.diagnosis import Diagnosis
from primus_bootstrap.launch.watch import classification, node_record, restart_policy
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import kubernetes_objects as manifests
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_state import Attempt, Excluded, State
from primus_bootstrap.launch.watch.kube_cluster import JobObjects
from primus_bootstrap.launch.watch.node_record import NodeRecord
from primus_bootstrap.launch.watch.restart_policy import Clock
from primus_bootstrap.launch.watch.targets.kubernetes import KubernetesTarget
from tests.unit.test_watch_kubernetes_nodes import a_node
from tests.unit.test_watch_kubernetes_objects import a_job, a_pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.launch.watch.classification import Outcome
    from primus_bootstrap.launch.watch.kube_api import Api

FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
REFUSED = {"phase": "Failed", "containerStatuses": [], "reason": "UnexpectedAdmissionError", "message": "no devices left"}
MADE = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
UNPLACED = {
    "phase": "Pending",
    "containerStatuses": [],
    "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}],
}


class Server:
    """An API server with the objects of a test."""

    def __init__(self) -> None:
        """Create three healthy nodes, one Job and no pods."""
        self.job: dict[str, Any] = {"metadata": {"name": "try-0a1b2c-1", "labels": {}}, "spec": {}, "status": {}}
        self.pods: list[dict[str, Any]] = []
        self.nodes = {f"gpu{number}": a_node() for number in (1, 2, 3)}

    def get(self, path: str) -> dict[str, Any]:
        """Return the API groups."""
        assert path == "/apis"
        return {"groups": [{"name": "batch", "versions": [{"version": "v1"}]}]}

    def items(self, path: str, **_: str) -> Iterator[dict[str, Any]]:
        """List nodes, pods or Jobs."""
        nodes = [{**node, "metadata": {"name": name}} for name, node in self.nodes.items()]
        yield from {"nodes": nodes, "pods": self.pods, "jobs": [self.job]}[path.rpartition("/")[2]]

    def find(self, path: str) -> dict[str, Any] | None:
        """Return a node."""
        return self.nodes.get(path.rpartition("/")[2])


@pytest.fixture
def server() -> Server:
    """An API server with three nodes."""
    return Server()


@pytest.fixture
def target(tmp_path: Path, server: Server) -> KubernetesTarget:
    """The target of a job on two nodes."""
    return KubernetesTarget(
        a_job(resources={"amd.com/gpu": "8"}), folders.JobFolder(tmp_path), JobObjects(cast("Api", server), "try-0a1b2c", "jobs")
    )


def pods(*ranks: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a pod for each rank: its node, and its status."""
    made = [a_pod(f"p{rank}", rank, **status) for rank, (_, status) in enumerate(ranks)]
    return [{**pod, "spec": {"nodeName": node}} for pod, (node, _) in zip(made, ranks, strict=True)]


def starting(**changes: Any) -> State:
    """Return the state of a first attempt that was submitted to Kubernetes."""
    return State("try-0a1b2c", phase=states.STARTING, attempt=1, attempts=(Attempt(1, started=100.0),), since=100.0, **changes)


def watch(target: KubernetesTarget, state: State, *times: float) -> State:
    """Observe and evaluate at these times, without the watcher's starts and stops."""
    for now in times:
        state = restart_policy.evaluate(target.job, state, target.observe(state), Clock(now)).state
    return state


def verdict(target: KubernetesTarget, state: State) -> Outcome:
    """Classify the attempt without any log."""
    return classification.classify(target.job, state, Diagnosis("", 0), {})


def test_a_pod_refused_by_its_kubelet_ends_the_attempt(target: KubernetesTarget, server: Server) -> None:
    """Its node is excluded, the reason is the kubelet's, and the attempt counts against the retry budget."""
    server.pods, server.job["status"] = pods(("gpu1", REFUSED)), {"conditions": [FAILED]}
    state = watch(target, starting(), 110)
    judged = verdict(target, state)
    again = restart_policy.conclude(target.job, state, judged, 111).state

    assert state.phase == states.ENDED
    assert (judged.kind, judged.cause, judged.hosts, judged.hardware) == (classification.NODE, classification.NOT_STARTED, ("gpu1",), False)
    assert "gpu1: UnexpectedAdmissionError: no devices left" in judged.reason
    assert "kubectl -n jobs get events" in judged.fix
    assert (again.phase, again.restarts_without_progress, [one.host for one in again.excluded]) == (states.WAITING, 1, ["gpu1"])


def test_a_job_that_fails_before_a_launcher_starts_ends_the_attempt(target: KubernetesTarget, server: Server) -> None:
    """A drain deletes a pod while its image is pulled. The Job fails, and no node is excluded."""
    server.job["status"] = {"conditions": [FAILED]}
    state = watch(target, starting(), 110)
    judged = verdict(target, state)

    assert state.phase == states.ENDED
    assert (judged.kind, judged.cause, judged.hosts) == (classification.OTHER, classification.NOT_STARTED, ())
    assert "try-0a1b2c-1 has failed: BackoffLimitExceeded" in judged.reason
    assert restart_policy.conclude(target.job, state, judged, 111).state.restarts_without_progress == 1


def test_a_refused_pod_beside_a_running_one_stops_the_attempt(target: KubernetesTarget, server: Server) -> None:
    """Its reason is kept after everything is deleted."""
    server.pods = pods(("gpu1", REFUSED), ("gpu2", {}))
    state = watch(target, starting(), 110, 110 + target.job.policy.settle_s)
    over = replace(state, phase=states.ENDED)

    assert (state.phase, state.stopping, state.absent) == (states.STOPPING, classification.STOP_NOT_STARTED, ("gpu1",))
    assert verdict(target, over).hosts == ("gpu1",)
    assert "no devices left" in verdict(target, over).reason


def test_a_pod_that_its_node_does_not_start_has_a_time_limit(target: KubernetesTarget, server: Server) -> None:
    """A missing mount keeps it in ContainerCreating: its node is excluded. Time in the queue does not count."""
    limit = target.job.policy.first_step_timeout_s
    server.pods = pods(("", UNPLACED), ("", UNPLACED))
    queued = watch(target, starting(), 110, 9000)
    server.pods = pods(("gpu1", MADE), ("gpu2", {}))
    before = watch(target, queued, 9001, 9001 + limit)
    after = watch(target, before, 9002 + limit)
    judged = verdict(target, replace(after, phase=states.ENDED))

    assert (queued.phase, before.phase, after.phase) == (states.STARTING, states.STARTING, states.STOPPING)
    assert (judged.cause, judged.hosts) == (classification.NOT_STARTED, ("gpu1",))
    assert f"it did not start within {limit} s: gpu1: its container is being created" in judged.reason


def test_a_cause_that_delays_every_pod_excludes_no_node(target: KubernetesTarget, server: Server) -> None:
    """A missing Secret delays all pods, which were placed at about the same time."""
    limit = target.job.policy.first_step_timeout_s
    server.pods = pods(("gpu1", MADE), ("", UNPLACED))
    state = watch(target, starting(), 110)
    server.pods = pods(("gpu1", MADE), ("gpu2", MADE))
    state = watch(target, state, 120, 111 + limit)

    assert (state.phase, state.absent) == (states.STOPPING, ("gpu1", "gpu2"))
    assert verdict(target, replace(state, phase=states.ENDED)).hosts == ()


def test_a_job_without_a_first_step_limit_has_a_start_limit(target: KubernetesTarget, server: Server) -> None:
    """The limit is hosts_timeout_s."""
    target.job = replace(target.job, policy=replace(target.job.policy, first_step_timeout_s=0))
    server.pods = pods(("gpu1", MADE), ("", UNPLACED))
    limit = target.job.policy.hosts_timeout_s

    assert watch(target, starting(), 110, 110 + limit).phase == states.STARTING
    assert watch(target, starting(), 110, 111 + limit).absent == ("gpu1",)


def test_pods_without_a_node_wait_without_a_limit(target: KubernetesTarget, server: Server) -> None:
    """They are in a queue. Time without a watcher does not count either."""
    server.pods = pods(("", UNPLACED), ("", UNPLACED))
    waiting = watch(target, starting(), 110, 90_000)
    server.pods = pods(("gpu1", MADE), ("gpu2", {}))
    moment = Clock(99_000, watching_since=98_990)
    away = restart_policy.evaluate(target.job, watch(target, waiting, 90_001), target.observe(waiting), moment).state

    assert (waiting.phase, waiting.reason) == (states.STARTING, "Kubernetes: 0/3 nodes")
    assert away.phase == states.STARTING


def test_a_job_suspended_before_its_first_step_has_its_own_reason(target: KubernetesTarget, server: Server) -> None:
    """Kueue evicts a job whose pods are not ready in time. That must end eventually."""
    attempt = target.folder.attempt(1)
    attempt.mkdir(parents=True)
    record = NodeRecord(0, "gpu1", "p0", "boot", "", 105.0, pod="p0")
    node_record.claim(attempt, record)
    node_record.close(attempt, record, ended=106.0, exit_code=143)
    server.job["spec"]["suspend"] = True
    seen = target.observe(starting())
    state = replace(starting(verdict=seen.verdict), phase=states.ENDED)
    stepped = replace(state, attempts=(Attempt(1, last_step=1),))

    assert seen.verdict == observations.PREEMPTED
    assert verdict(target, state).reason == "Kubernetes suspended or evicted it before the first step"
    assert "a job of higher priority" in verdict(target, stepped).reason


def test_a_node_returns_if_the_others_can_never_run_the_pods(target: KubernetesTarget, server: Server) -> None:
    """A control plane and a node without GPUs do not count."""
    server.nodes["cp1"] = a_node("node-role.kubernetes.io/control-plane=:NoSchedule")
    server.nodes["cpu1"] = a_node(gpus="0")
    excluded = tuple(Excluded(host, 100.0, "node_lost", "lost") for host in ("gpu1", "gpu2"))
    choice = choose(target.job, starting(excluded=excluded), target.candidates())

    assert {one.host.name for one in target.candidates().hosts} == {"gpu1", "gpu2", "gpu3"}
    assert (choice.returned, [one.host for one in choice.excluded]) == (("gpu1",), ["gpu2"])


def test_the_time_since_a_pod_was_placed_is_in_the_state() -> None:
    """A state of an earlier release has none."""
    state = starting(placed=(("gpu1", 120.0),))
    older = {name: value for name, value in state.to_json().items() if name != "placed"}

    assert states.from_json(state.to_json()) == state
    assert states.from_json(older).placed == ()


def test_pods_tolerate_the_taints_of_their_devices() -> None:
    """The same list is used for choosing nodes."""
    wanted = a_job(resources={"amd.com/gpu": "8"}).pods

    assert manifests.tolerations(wanted) == [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
