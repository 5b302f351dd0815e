"""The target `kubernetes`: an attempt is one object (JobSet, TrainJob, Indexed Job) or a Job per rank, found by its labels.

The cluster never restarts anything by itself: the watcher creates new objects for each attempt. Rank 0's address is passed through the
shared storage, so no name has to be resolved.
"""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.launch.self_exec import archive, own_command
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import kubernetes_objects as manifests
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.job_spec import Host
from primus_bootstrap.launch.watch.job_spec_kubernetes import INDEXED, JOBSET, RANKS, TRAINJOB
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError, ApiUnavailableError
from primus_bootstrap.launch.watch.kube_broker import pod_user
from primus_bootstrap.launch.watch.observation import Candidate, Candidates, NodeObservation, Observation
from primus_bootstrap.launch.watch.targets import kubernetes_nodes as node_checks
from primus_bootstrap.launch.watch.targets import kubernetes_pods as pod_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.kube_cluster import Cluster
    from primus_bootstrap.launch.watch.kubernetes_objects import Kind, Start
    from primus_bootstrap.launch.watch.node_record import NodeRecord
    from primus_bootstrap.launch.watch.targets.kubernetes_pods import Pod

_STUCK_S = 60.0  # a registry may be unreachable for a moment
_WITHOUT_KUBELET, _KILL = 0, 1  # grace periods in seconds: 0 deletes the object without waiting for the kubelet


@dataclass
class KubernetesTarget:
    """The objects of one job. `refused` is the error of the newest start."""

    job: Job
    folder: JobFolder
    cluster: Cluster
    refused: str = ""
    stuck_since: dict[str, float] = field(default_factory=dict)
    _kinds: tuple[Kind, ...] = ()

    def candidates(self) -> Candidates:
        """Return the nodes that could run the pods, and whether the scheduler can use them now."""
        selector = ",".join(f"{name}={value}" for name, value in self.job.pods.node_selector.items())
        try:
            nodes = self.cluster.nodes(selector)
        except (ApiUnavailableError, ApiRefusedError) as error:
            return Candidates(chosen_by_target=True, why=str(error))
        tolerations = manifests.tolerations(self.job.pods)
        able = {node["metadata"]["name"]: node_checks.usable(node) for node in nodes if node_checks.suits(node, self.job.pods, tolerations)}
        return Candidates(tuple(Candidate(Host(name, name), answers=well) for name, well in able.items()), chosen_by_target=True)

    def start(self, state: State) -> None:
        """Create the attempt's objects unless they exist; if that is unknown, do nothing."""
        self.refused = ""
        try:
            existing = {(kind, item["metadata"]["name"]) for kind, item in self._tops(state.attempt)}
            start = self._start(state)
            if existing and any(_object_names(start, form) <= existing for form in manifests.FORMS):
                return
            self._clear(state.attempt)
            form = self._form(start)
            for index, (kind, sent) in enumerate(manifests.objects(start, form)):
                if (kind, sent["metadata"]["name"]) not in existing:
                    self._create(start, form, index)
        except (ApiUnavailableError, ApiRefusedError) as error:
            self.refused = str(error)

    def observe(self, state: State) -> Observation:
        """Query the attempt's objects and pods, and doubtful nodes, and read the records of the launchers."""
        records = node_record.read_all(self.folder.attempt(state.attempt))
        try:
            tops = [item for _, item in self._tops(state.attempt)]
            listed = self.cluster.pods(state.attempt)
            pods = pod_status.by_rank((pod for pod in map(pod_status.read_pod, listed) if pod), records)
            ready = self._nodes_ready(pods, records)
        except (ApiUnavailableError, ApiRefusedError) as error:
            return Observation(observations.SILENT, why=str(error))
        if not tops and not pods:
            return self._without_objects(state, records, ready)
        self._keep_logs(state, pods, records)
        names = pod_status.node_names(self.job.nodes, pods, records)
        failed = pod_status.failures(tops, self.job.nodes)
        nodes = tuple(self._node(rank, pods.get(rank), records.get(rank), ready, failed.get(rank, "")) for rank in range(self.job.nodes))
        hosts = tuple(Host(name, name) for name in names)
        held = any(map(pod_status.suspended, tops)) and not state.stopping
        preempted = bool(records) and (held or any(pod.preempted for pod in pods.values()))
        verdict = observations.PREEMPTED if preempted else ""
        if tops and all(item["metadata"].get("deletionTimestamp") for item in tops):
            verdict = _deleted(state, records)
        return Observation(self._status(nodes, pods), nodes, verdict, self.job.unit(state.attempt), hosts, why=_why(nodes, pods, held=held))

    def stop(self, state: State, *, force: bool) -> None:
        """Delete the attempt's objects with their pods; `force` skips the grace period."""
        try:
            for kind, item in self._tops(state.attempt):
                self._delete(kind, item)
            if force:
                for item in self.cluster.pods(state.attempt):
                    self._delete_pod(item, _KILL)
        except (ApiUnavailableError, ApiRefusedError) as error:
            self.refused = str(error)

    def _served(self) -> tuple[Kind, ...]:
        """Return the kinds that the API server supports; queried once."""
        if not self._kinds:
            self._kinds = self.cluster.served()
        return self._kinds

    def _tops(self, attempt: int | None = None) -> Iterator[tuple[Kind, dict[str, Any]]]:
        """Yield the objects of this job, of one attempt or of all."""
        for kind in self._served():
            for item in self.cluster.tops(kind, attempt):
                yield kind, item

    def _start(self, state: State) -> Start:
        found = archive()
        if found:  # pods run the same release of primus-cli as the watcher
            copy = self.folder.path / "primus-cli"
            write_if_changed(copy, found.read_bytes())
            own: tuple[str, ...] = ("python3", "-I", str(copy))
        else:
            own = own_command("python3")
        words = (*own, "attempt", "--folder", str(self.folder.path), "--attempt", str(state.attempt))
        return manifests.Start(self.job, state.attempt, words, _pod_user(), tuple(item.host for item in state.excluded))

    def _form(self, start: Start) -> str:
        """Return the form of the attempt: the job's choice, or the best that the server supports.

        An old server accepts an Indexed Job and silently drops completionMode. A dry run shows whether it does.

        Raises:
            ApiRefusedError: The server does not support the job's choice.
        """
        form, served = self.job.pods.form, {kind.form for kind in self._served()}
        if form == "auto" and JOBSET in served:
            return JOBSET
        if form in (JOBSET, TRAINJOB) and form not in served:
            raise ApiRefusedError(404, f"it has no API for {form}; set workload_kubernetes_form: auto")
        if form in ("auto", INDEXED):
            kept = self.cluster.create(start, INDEXED, 0, dry_run=True)
            if kept["spec"].get("completionMode") == "Indexed":
                return INDEXED
            if form == INDEXED:
                raise ApiRefusedError(404, "its Jobs have no completionMode; set workload_kubernetes_form: auto")
            form = RANKS
        if form == RANKS and self.job.pods.queue:
            raise ApiRefusedError(
                404, "a queue needs one object for all ranks, and this server needs a Job per rank; leave workload_kubernetes_queue empty"
            )
        return form

    def _create(self, start: Start, form: str, index: int) -> None:
        """Create an object, and delete it again if the server dropped a field.

        Raises:
            ApiRefusedError: The server refused the object, or dropped a field.
        """
        kind, sent = manifests.objects(start, form)[index]
        kept = self.cluster.create(start, form, index)
        missing = manifests.dropped(sent["spec"], kept.get("spec"))
        if missing:
            self._delete(kind, kept)
            raise ApiRefusedError(422, f"{kind.name} {sent['metadata']['name']}: it drops spec.{missing}, which the job needs")

    def _clear(self, attempt: int) -> None:
        """Delete objects of earlier attempts, whose leases have expired. Pods on silent nodes would keep their resources."""
        ready: dict[str, bool] = {}
        for kind, item in self._tops():
            if item["metadata"]["labels"].get(manifests.ATTEMPT) != str(attempt):
                self._delete(kind, item)
        for item in self.cluster.pods(None):
            node = (item.get("spec") or {}).get("nodeName")
            if item["metadata"]["labels"].get(manifests.ATTEMPT) == str(attempt) or not node:
                continue
            if node not in ready:
                ready[node] = node_checks.ready(self.cluster.node(node))
            if not ready[node]:
                self._delete_pod(item, _WITHOUT_KUBELET)

    def _delete(self, kind: Kind, item: Mapping[str, Any]) -> None:
        """Delete an object by name and uid, with its dependents."""
        metadata = item["metadata"]
        if not metadata.get("deletionTimestamp"):
            self.cluster.delete(kind, metadata["name"], metadata["uid"])

    def _delete_pod(self, item: Mapping[str, Any], seconds: int) -> None:
        self.cluster.delete_pod(item["metadata"]["name"], item["metadata"]["uid"], seconds)

    def _nodes_ready(self, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> dict[str, bool]:
        doubtful = [rank for rank in range(self.job.nodes) if pod_status.in_doubt(rank, pods, records)]
        names = {records[rank].host if rank in records else pods[rank].node for rank in doubtful}
        return {name: node_checks.ready(self.cluster.node(name)) for name in sorted(names)}

    def _node(self, rank: int, pod: Pod | None, record: NodeRecord | None, ready: Mapping[str, bool], failed: str = "") -> NodeObservation:
        name = record.host if record else pod.node if pod else ""
        return pod_status.node_observation(name or f"rank {rank}", pod, record, ready.get(name), failed)

    def _status(self, nodes: tuple[NodeObservation, ...], pods: Mapping[int, Pod]) -> str:
        """Return the state of the attempt; it is absent if an image cannot be pulled for a long time."""
        stuck = {pod.name for pod in pods.values() if pod.stuck}
        now = time.monotonic()
        self.stuck_since = {name: self.stuck_since.get(name, now) for name in stuck}
        if any(now - since > _STUCK_S for since in self.stuck_since.values()):
            return observations.ABSENT
        return pod_status.status_of(nodes)

    def _without_objects(self, state: State, records: Mapping[int, NodeRecord], ready: Mapping[str, bool]) -> Observation:
        """Return the observation of an attempt without objects: not created yet, cleaned up after its end, or deleted by a user."""
        if state.phase == states.STARTING and not records and not state.target_id:
            return Observation(observations.ABSENT, why=self.refused)
        names = [host.name for host in state.hosts] or [f"rank {rank}" for rank in range(self.job.nodes)]
        nodes = tuple(
            self._node(rank, None, records[rank], ready) if rank in records else NodeObservation(name, observations.ENDED)
            for rank, name in enumerate(names)
        )
        return Observation(
            pod_status.status_of(nodes), nodes, _deleted(state, records), why="Kubernetes has no objects of the attempt any more"
        )

    def _keep_logs(self, state: State, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> None:
        """Save the logs of containers whose launcher never started; launchers write their logs to the shared storage."""
        for rank, pod in pods.items():
            path = self.folder.attempt(state.attempt) / f"node-{rank:05d}.log"
            if rank in records or pod.exit_code is None or path.exists():
                continue
            try:
                text = self.cluster.log(pod.name)
            except (ApiUnavailableError, ApiRefusedError) as error:
                text = str(error)
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "its log is empty")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"{text.rstrip()}\nprimus-cli: the container of {pod.name} ended with exit code {pod.exit_code}: {last}\n", "utf-8"
            )


def _why(nodes: tuple[NodeObservation, ...], pods: Mapping[int, Pod], *, held: bool) -> str:
    """Return why an attempt does not run yet."""
    reasons = dict.fromkeys(node.why for node in nodes if node.state == observations.ABSENT and node.why)
    if held:
        return "Kubernetes suspends the job: its queue has not admitted it"
    if reasons:
        return f"Kubernetes: {'; '.join(reasons)}"
    return "" if pods else "Kubernetes has not created pods yet"


def _deleted(state: State, records: Mapping[int, NodeRecord]) -> str:
    """Return the verdict on an attempt whose objects were deleted: cancelled, unless this watcher did it or the attempt had ended."""
    ended = bool(records) and all(record.exit_code == 0 for record in records.values())
    return "" if state.stopping or ended else observations.CANCELLED


def _object_names(start: Start, form: str) -> set[tuple[Kind, str]]:
    return {(kind, sent["metadata"]["name"]) for kind, sent in manifests.objects(start, form)}


def _pod_user() -> manifests.PodUser:
    """Return the ids of the job's user, which this watcher has too."""
    try:
        return pod_user(pwd.getpwuid(os.geteuid()))
    except KeyError:
        return manifests.PodUser(os.geteuid(), os.getegid())
