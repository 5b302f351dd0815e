"""What the pods of an attempt say of its ranks: pure functions from the API server's objects to what the policy judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.watch import observation as seeing
from primus_bootstrap.launch.watch.observation import NodeObservation
from primus_bootstrap.launch.watch.targets.kubernetes_objects import INDEX, RANK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.launch.watch.node_record import NodeRecord

# Of a container that waits: what no waiting mends.
_STUCK = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
     "RunContainerError", "ImageInspectError"}
)  # fmt: skip
# Who ended a pod before its time, where the kubelet did: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/
_BY_KUBELET = ("", "TerminationByKubelet")
_SHOWN = 300


@dataclass(frozen=True)
class Pod:
    """One pod, as far as it counts here.

    `exit_code` is the kubelet's word that its container has ended. `well`: it runs, and the kubelet says so of late. `stuck` and `waits`
    say why it does not run, `failed` why it never will. `placed`: it has a node, whose kubelet has yet to start its container, or refused.
    """

    name: str
    rank: int
    node: str = ""
    created: str = ""
    running: bool = False
    well: bool = False
    exit_code: int | None = None
    stuck: str = ""
    waits: str = ""
    failed: str = ""
    placed: bool = False
    preempted: bool = False
    deleted: bool = False


def read_pod(item: Mapping[str, Any]) -> Pod | None:
    """Return what a pod says; None where it has no rank."""
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
        stuck=_said(f"{waiting['reason']}: {waiting.get('message', '')}") if stuck else "",
        waits=""
        if running or scheduled.get("status") != "False"
        else _said(str(scheduled.get("message") or scheduled.get("reason") or "")),
        failed=_reason(status) or "its pod has failed" if failed else "",
        placed=bool(spec.get("nodeName")) and ended is None and not running and (not failed or whose in _BY_KUBELET),
        preempted=whose == "PreemptionByScheduler",
        deleted=bool(metadata.get("deletionTimestamp")),
    )


def by_rank(pods: Iterable[Pod], records: Mapping[int, NodeRecord]) -> dict[int, Pod]:
    """Return each rank's pod: the one whose launcher has the rank, else the newest.

    What takes the place of a pod that is gone was not made by the watcher, and its launcher refuses to run.
    """
    found: dict[int, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.created):
        record = records.get(pod.rank)
        if record is None or record.pod == pod.name:
            found[pod.rank] = pod
    return found


def node_names(nodes: int, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> tuple[str, ...]:
    """Return the node of each rank in their order; nothing as long as one has none."""
    names = [records[rank].host if rank in records else pods[rank].node if rank in pods else "" for rank in range(nodes)]
    return tuple(names) if all(names) else ()


def in_doubt(rank: int, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> bool:
    """Say whether the node of a rank has to be looked at: a pod that the kubelet says runs, or has ended, is proof enough."""
    record, pod = records.get(rank), pods.get(rank)
    if record is not None and record.ended is not None:
        return False
    if pod is None:
        return record is not None
    return bool(pod.node) and not pod.well and pod.exit_code is None


def judge_rank(
    name: str,
    pod: Pod | None,
    record: NodeRecord | None,
    ready: bool | None,  # noqa: FBT001 - None: not looked at
    failed: str = "",
) -> NodeObservation:
    """Judge one rank.

    `name` is its node, else what people know it by, `ready` what its node's condition says, `failed` why no pods are made any more.
    """
    if record is not None and record.ended is not None:
        return NodeObservation(name, seeing.ENDED, record.exit_code, why=record.note)
    if pod is not None and pod.exit_code is not None:
        # Without a record the launcher never began, and the code is none of its own.
        why = f"its container ended with {pod.exit_code}"
        return NodeObservation(name, seeing.ENDED, None if record is None else pod.exit_code, why=why, begun=record is not None)
    if ready is False:
        return NodeObservation(name, seeing.SILENT, why="Kubernetes does not hear from it")
    if pod is not None and pod.running:
        return NodeObservation(name, seeing.RUNNING)
    if record is None:
        return _not_begun(name, pod, failed)
    return NodeObservation(name, seeing.SILENT, why="its pod is gone, and the launcher there has not said how it ended", heard=True)


def _not_begun(name: str, pod: Pod | None, failed: str) -> NodeObservation:
    """Judge a rank whose launcher has not begun: it waits, or never will. What is no node's is said of none."""
    if pod is not None and pod.failed:
        return NodeObservation(name, seeing.ENDED, why=pod.failed, begun=False, placed=pod.placed)
    if pod is None:
        return NodeObservation(name, seeing.ENDED, why=failed, begun=False) if failed else NodeObservation(name, seeing.ABSENT)
    return NodeObservation(name, seeing.ABSENT, why=pod.stuck or pod.waits or "its container is being made", placed=pod.placed)


def status_of(nodes: Sequence[NodeObservation]) -> str:
    """Return how the attempt stands as a whole; one that has yet to start on a node is in the queue."""
    found = {node.state for node in nodes}
    if seeing.ABSENT in found:
        return seeing.QUEUED
    if seeing.RUNNING in found:
        return seeing.RUNNING
    return seeing.SILENT if seeing.SILENT in found and seeing.ENDED not in found else seeing.ENDED


def failed(item: Mapping[str, Any]) -> str:
    """Say why an object has failed for good; empty where it has not. A Job, a JobSet and a TrainJob say so by the same condition."""
    status = item.get("status") or {}
    told = next((one for one in status.get("conditions") or () if one.get("type") == "Failed" and one.get("status") == "True"), None)
    if told is None and status.get("terminalState") != "Failed":
        return ""
    return f"{item['metadata']['name']} has failed: {_reason(told or {}) or 'no reason given'}"


def failures(items: Iterable[Mapping[str, Any]], nodes: int) -> dict[int, str]:
    """Return by rank why no pod of it will be made: an object that has failed is of all ranks, or says of which."""
    found: dict[int, str] = {}
    for item in items:
        why, own = failed(item), (item["metadata"].get("labels") or {}).get(RANK, "")
        if why:
            found.update(dict.fromkeys([int(own)] if own.isdecimal() else range(nodes), why))
    return found


def suspended(item: Mapping[str, Any]) -> bool:
    """Say whether an object is being held back, by a queue for one."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Suspended" and one.get("status") == "True" for one in conditions) or bool(
        (item.get("spec") or {}).get("suspend")
    )


def _reason(told: Mapping[str, Any]) -> str:
    return _said(": ".join(str(told[key]) for key in ("reason", "message") if told.get(key)))


def _said(text: str) -> str:
    return " ".join(text.split())[:_SHOWN]
