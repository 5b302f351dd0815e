"""Derive the state of an attempt's nodes from its pods. Pure functions of the API server's objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.kubernetes_objects import INDEX, RANK
from primus_bootstrap.launch.watch.observation import NodeObservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.launch.watch.node_record import NodeRecord

# Reasons of a waiting container that stay until somebody changes something.
_STUCK = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
     "RunContainerError", "ImageInspectError"}
)  # fmt: skip
# Reasons of a disruption by the kubelet: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/
_BY_KUBELET = ("", "TerminationByKubelet")
_SHOWN = 300


@dataclass(frozen=True)
class Pod:
    """One pod."""

    name: str
    rank: int
    node: str = ""  # its node; empty before it is scheduled
    created: str = ""
    running: bool = False
    well: bool = False  # it runs, and the kubelet has reported it recently
    exit_code: int | None = None  # exit code of the container, from the kubelet
    stuck: str = ""  # why the container cannot be started
    waits: str = ""  # why the pod is not scheduled
    failed: str = ""  # why the pod failed before its container ran
    placed: bool = False  # it has a node, whose kubelet has not started the container yet, or refused to
    preempted: bool = False


def read_pod(item: Mapping[str, Any]) -> Pod | None:
    """Read a pod; return None if it has no rank."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    number = (metadata.get("labels") or {}).get(RANK) or (metadata.get("annotations") or {}).get(INDEX) or ""
    if not number.isdecimal():
        return None
    container: dict[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled, disrupted = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    stuck = waiting.get("reason") in _STUCK
    running = ended is None and status.get("phase") == "Running"
    failed = ended is None and status.get("phase") == "Failed"
    whose = str(disrupted.get("reason") or "") if disrupted.get("status") == "True" else ""
    return Pod(
        name=str(metadata["name"]),
        rank=int(number),
        node=str(spec.get("nodeName") or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        running=running,
        well=running and conditions.get("Ready", {}).get("status") == "True" and not metadata.get("deletionTimestamp"),
        exit_code=None if ended is None else int(ended.get("exitCode", 0)),
        stuck=_one_line(f"{waiting['reason']}: {waiting.get('message', '')}") if stuck else "",
        waits=""
        if running or scheduled.get("status") != "False"
        else _one_line(str(scheduled.get("message") or scheduled.get("reason") or "")),
        failed=_reason(status) or "its pod has failed" if failed else "",
        placed=bool(spec.get("nodeName")) and ended is None and not running and (not failed or whose in _BY_KUBELET),
        preempted=whose == "PreemptionByScheduler",
    )


def by_rank(pods: Iterable[Pod], records: Mapping[int, NodeRecord]) -> dict[int, Pod]:
    """Return the pod of each rank: the one whose launcher claimed the rank, else the newest.

    The launcher of a replacement pod refuses to run, because the watcher did not create it.
    """
    found: dict[int, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.created):
        record = records.get(pod.rank)
        if record is None or record.pod == pod.name:
            found[pod.rank] = pod
    return found


def node_names(nodes: int, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> tuple[str, ...]:
    """Return the nodes in the order of their ranks; empty while a rank has none."""
    names = [records[rank].host if rank in records else pods[rank].node if rank in pods else "" for rank in range(nodes)]
    return tuple(names) if all(names) else ()


def in_doubt(rank: int, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> bool:
    """Return whether the node of a rank must be checked: not if the kubelet reports that the pod runs or has ended."""
    record, pod = records.get(rank), pods.get(rank)
    if record is not None and record.ended is not None:
        return False
    if pod is None:
        return record is not None
    return bool(pod.node) and not pod.well and pod.exit_code is None


def node_observation(
    name: str,
    pod: Pod | None,
    record: NodeRecord | None,
    ready: bool | None,  # noqa: FBT001 - None: not checked
    failed: str = "",
) -> NodeObservation:
    """Return the observation of one rank.

    Args:
        name: Its node, or the name to show.
        pod: Its pod.
        record: The record of its launcher.
        ready: Whether its node is ready.
        failed: Why no more pods are created.
    """
    if record is not None and record.ended is not None:
        return NodeObservation(name, observations.ENDED, record.exit_code, why=record.note)
    if pod is not None and pod.exit_code is not None:
        # Without a record the launcher never started, and the exit code is not its own.
        why = f"its container ended with {pod.exit_code}"
        return NodeObservation(name, observations.ENDED, None if record is None else pod.exit_code, why=why, begun=record is not None)
    if ready is False:
        return NodeObservation(name, observations.SILENT, why="Kubernetes reports it as not ready")
    if pod is not None and pod.running:
        return NodeObservation(name, observations.RUNNING)
    if record is None:
        return _not_started(name, pod, failed)
    return NodeObservation(name, observations.SILENT, why="its pod is gone, and the launcher left no exit code", host_responds=True)


def _not_started(name: str, pod: Pod | None, failed: str) -> NodeObservation:
    """Return the observation of a rank whose launcher has not started: it waits, or it failed."""
    if pod is not None and pod.failed:
        return NodeObservation(name, observations.ENDED, why=pod.failed, begun=False, placed=pod.placed)
    if pod is None:
        return NodeObservation(name, observations.ENDED, why=failed, begun=False) if failed else NodeObservation(name, observations.ABSENT)
    return NodeObservation(name, observations.ABSENT, why=pod.stuck or pod.waits or "its container is being created", placed=pod.placed)


def status_of(nodes: Sequence[NodeObservation]) -> str:
    """Return the state of the whole attempt; it is queued until all its nodes have started."""
    found = {node.state for node in nodes}
    if observations.ABSENT in found:
        return observations.QUEUED
    if observations.RUNNING in found:
        return observations.RUNNING
    return observations.SILENT if observations.SILENT in found and observations.ENDED not in found else observations.ENDED


def failure(item: Mapping[str, Any]) -> str:
    """Return why an object has failed; empty if it has not. Jobs, JobSets and TrainJobs have the same condition."""
    status = item.get("status") or {}
    condition = next((one for one in status.get("conditions") or () if one.get("type") == "Failed" and one.get("status") == "True"), None)
    if condition is None and status.get("terminalState") != "Failed":
        return ""
    return f"{item['metadata']['name']} has failed: {_reason(condition or {}) or 'no reason given'}"


def failures(items: Iterable[Mapping[str, Any]], nodes: int) -> dict[int, str]:
    """Return by rank why no more pods are created: a failed object belongs to one rank or to all."""
    found: dict[int, str] = {}
    for item in items:
        why, own = failure(item), (item["metadata"].get("labels") or {}).get(RANK, "")
        if why:
            found.update(dict.fromkeys([int(own)] if own.isdecimal() else range(nodes), why))
    return found


def suspended(item: Mapping[str, Any]) -> bool:
    """Return whether an object is suspended, for example by a queue."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Suspended" and one.get("status") == "True" for one in conditions) or bool(
        (item.get("spec") or {}).get("suspend")
    )


def _reason(condition: Mapping[str, Any]) -> str:
    return _one_line(": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key)))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_SHOWN]
