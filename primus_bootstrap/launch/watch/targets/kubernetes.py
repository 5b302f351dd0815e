"""The target `kubernetes`: an attempt is one object (JobSet, TrainJob, Indexed Job) or a Job a rank, found again by its labels.

The cluster never starts anything again by itself: the watcher makes new objects for each attempt. Rank 0's address goes over the shared
storage, so that no name has to be resolved.
"""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.launch.runtimes.self_exec import archive, own_command
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch import observation as seeing
from primus_bootstrap.launch.watch.job_spec import Host
from primus_bootstrap.launch.watch.job_spec_kubernetes import INDEXED, JOBSET, RANKS, TRAINJOB
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError, ApiSilentError
from primus_bootstrap.launch.watch.kube_broker import person
from primus_bootstrap.launch.watch.observation import Candidate, Candidates, NodeObservation, Observation
from primus_bootstrap.launch.watch.targets import kubernetes_nodes as places
from primus_bootstrap.launch.watch.targets import kubernetes_objects as making
from primus_bootstrap.launch.watch.targets import kubernetes_pods as reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_state import State
    from primus_bootstrap.launch.watch.kube_cluster import Cluster
    from primus_bootstrap.launch.watch.node_record import NodeRecord
    from primus_bootstrap.launch.watch.targets.kubernetes_objects import Kind, Start
    from primus_bootstrap.launch.watch.targets.kubernetes_pods import Pod

_STUCK_S = 60.0  # a registry may be away for a moment
_AT_ONCE, _NOW = 0, 1  # seconds of grace: gone from the server without the kubelet's word, or killed by it


@dataclass
class KubernetesTarget:
    """The objects of one job. `refused` is what the API server said to the newest start, for people."""

    job: Job
    folder: JobFolder
    cluster: Cluster
    refused: str = ""
    stuck_since: dict[str, float] = field(default_factory=dict)
    _kinds: tuple[Kind, ...] = ()

    def candidates(self) -> Candidates:
        """Ask which nodes there are that can take the pods at all, and which of them the scheduler can use now."""
        wanted = ",".join(f"{name}={value}" for name, value in self.job.pods.node_selector.items())
        try:
            nodes = self.cluster.nodes(wanted)
        except (ApiSilentError, ApiRefusedError) as error:
            return Candidates(chosen_by_target=True, why=str(error))
        borne = making.tolerations(self.job.pods)
        able = {node["metadata"]["name"]: places.usable(node) for node in nodes if places.suits(node, self.job.pods, borne)}
        return Candidates(tuple(Candidate(Host(name, name), answers=well) for name, well in able.items()), chosen_by_target=True)

    def start(self, state: State) -> None:
        """Make the attempt's objects unless they are there; what cannot be found out leaves everything as it is."""
        self.refused = ""
        try:
            there = {(kind, item["metadata"]["name"]) for kind, item in self._tops(state.attempt)}
            start = self._start(state)
            if there and any(_made(start, form) <= there for form in making.FORMS):
                return
            self._clear(state.attempt)
            form = self._form(start)
            for index, (kind, sent) in enumerate(making.objects(start, form)):
                if (kind, sent["metadata"]["name"]) not in there:
                    self._create(start, form, index)
        except (ApiSilentError, ApiRefusedError) as error:
            self.refused = str(error)

    def observe(self, state: State) -> Observation:
        """Ask for the attempt's objects and pods, for nodes of which there is doubt, and read what the launchers wrote."""
        records = node_record.read_all(self.folder.attempt(state.attempt))
        try:
            tops = [item for _, item in self._tops(state.attempt)]
            listed = self.cluster.pods(state.attempt)
            pods = reading.by_rank((pod for pod in map(reading.read_pod, listed) if pod), records)
            ready = self._nodes_ready(pods, records)
        except (ApiSilentError, ApiRefusedError) as error:
            return Observation(seeing.SILENT, why=str(error))
        if not tops and not pods:
            return self._without_objects(state, records, ready)
        self._keep_logs(state, pods, records)
        names = reading.node_names(self.job.nodes, pods, records)
        failed = reading.failures(tops, self.job.nodes)
        nodes = tuple(self._node(rank, pods.get(rank), records.get(rank), ready, failed.get(rank, "")) for rank in range(self.job.nodes))
        hosts = tuple(Host(name, name) for name in names)
        held = any(map(reading.suspended, tops)) and not state.stopping
        preempted = bool(records) and (held or any(pod.preempted for pod in pods.values()))
        verdict = seeing.PREEMPTED if preempted else ""
        if tops and all(item["metadata"].get("deletionTimestamp") for item in tops):
            verdict = _deleted(state, records)
        return Observation(self._status(nodes, pods), nodes, verdict, self.job.unit(state.attempt), hosts, why=_why(nodes, pods, held=held))

    def stop(self, state: State, *, force: bool) -> None:
        """Delete the attempt's objects and thereby its pods, which have their time for a checkpoint; with `force` they have none."""
        try:
            for kind, item in self._tops(state.attempt):
                self._delete(kind, item)
            if force:
                for item in self.cluster.pods(state.attempt):
                    self._delete_pod(item, _NOW)
        except (ApiSilentError, ApiRefusedError) as error:
            self.refused = str(error)

    def _served(self) -> tuple[Kind, ...]:
        """Return the kinds that the API server has, asked for once."""
        if not self._kinds:
            self._kinds = self.cluster.served()
        return self._kinds

    def _tops(self, attempt: int | None = None) -> Iterator[tuple[Kind, dict[str, Any]]]:
        """Yield the objects of an attempt, or of all, that this watcher has made; nobody else's."""
        for kind in self._served():
            for item in self.cluster.tops(kind, attempt):
                yield kind, item

    def _start(self, state: State) -> Start:
        found = archive()
        if found:  # the pods run what the watcher runs, whatever their image has
            copy = self.folder.path / "primus-cli"
            write_if_changed(copy, found.read_bytes())
            own: tuple[str, ...] = ("python3", "-I", str(copy))
        else:
            own = own_command("python3")
        words = (*own, "attempt", "--folder", str(self.folder.path), "--attempt", str(state.attempt))
        return making.Start(self.job, state.attempt, words, _person(), tuple(item.host for item in state.excluded))

    def _form(self, start: Start) -> str:
        """Return how the attempt is put: as its job says, else by what the server has.

        An old server takes an Indexed Job and drops in silence that it is one: so it is asked, and what it would keep is read.

        Raises:
            ApiRefusedError: The job asks for what the server has not.
        """
        wanted, served = self.job.pods.form, {kind.form for kind in self._served()}
        if wanted == "auto" and JOBSET in served:
            return JOBSET
        if wanted in (JOBSET, TRAINJOB) and wanted not in served:
            raise ApiRefusedError(404, f"it has no API for {wanted}; set workload_kubernetes_form: auto")
        if wanted in ("auto", INDEXED):
            kept = self.cluster.create(start, INDEXED, 0, dry_run=True)
            if kept["spec"].get("completionMode") == "Indexed":
                return INDEXED
            if wanted == INDEXED:
                raise ApiRefusedError(404, "its Jobs know no completionMode; set workload_kubernetes_form: auto")
            wanted = RANKS
        if wanted == RANKS and self.job.pods.queue:
            raise ApiRefusedError(
                404, "a queue admits a job as one object, and a Job a rank is none; leave workload_kubernetes_queue empty"
            )
        return wanted

    def _create(self, start: Start, form: str, index: int) -> None:
        """Make an object, and take it back where the server has not kept all of it.

        Raises:
            ApiRefusedError: The server takes it not, or not as it is.
        """
        kind, sent = making.objects(start, form)[index]
        kept = self.cluster.create(start, form, index)
        missing = making.dropped(sent["spec"], kept.get("spec"))
        if missing:
            self._delete(kind, kept)
            raise ApiRefusedError(422, f"{kind.name} {sent['metadata']['name']}: it drops spec.{missing}, which the job needs")

    def _clear(self, attempt: int) -> None:
        """Delete what is left of earlier attempts, whose leases are over; pods on nodes that nobody hears from would hold their share."""
        ready: dict[str, bool] = {}
        for kind, item in self._tops():
            if item["metadata"]["labels"].get(making.ATTEMPT) != str(attempt):
                self._delete(kind, item)
        for item in self.cluster.pods(None):
            node = (item.get("spec") or {}).get("nodeName")
            if item["metadata"]["labels"].get(making.ATTEMPT) == str(attempt) or not node:
                continue
            if node not in ready:
                ready[node] = places.ready(self.cluster.node(node))
            if not ready[node]:
                self._delete_pod(item, _AT_ONCE)

    def _delete(self, kind: Kind, item: Mapping[str, Any]) -> None:
        """Delete an object with what belongs to it, that very one."""
        metadata = item["metadata"]
        if not metadata.get("deletionTimestamp"):
            self.cluster.delete(kind, metadata["name"], metadata["uid"])

    def _delete_pod(self, item: Mapping[str, Any], seconds: int) -> None:
        self.cluster.delete_pod(item["metadata"]["name"], item["metadata"]["uid"], seconds)

    def _nodes_ready(self, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> dict[str, bool]:
        doubtful = [rank for rank in range(self.job.nodes) if reading.in_doubt(rank, pods, records)]
        names = {records[rank].host if rank in records else pods[rank].node for rank in doubtful}
        return {name: places.ready(self.cluster.node(name)) for name in sorted(names)}

    def _node(self, rank: int, pod: Pod | None, record: NodeRecord | None, ready: Mapping[str, bool], failed: str = "") -> NodeObservation:
        name = record.host if record else pod.node if pod else ""
        return reading.judge_rank(name or f"rank {rank}", pod, record, ready.get(name), failed)

    def _status(self, nodes: tuple[NodeObservation, ...], pods: Mapping[int, Pod]) -> str:
        """Judge the whole: an image that cannot be had for long is no queue to wait in."""
        stuck = {pod.name for pod in pods.values() if pod.stuck}
        now = time.monotonic()
        self.stuck_since = {name: self.stuck_since.get(name, now) for name in stuck}
        if any(now - since > _STUCK_S for since in self.stuck_since.values()):
            return seeing.ABSENT
        return reading.status_of(nodes)

    def _without_objects(self, state: State, records: Mapping[int, NodeRecord], ready: Mapping[str, bool]) -> Observation:
        """Judge an attempt of which the server has nothing: not made yet, over and cleaned up, or deleted by somebody."""
        if state.phase == states.STARTING and not records and not state.target_id:
            return Observation(seeing.ABSENT, why=self.refused)
        names = [host.name for host in state.hosts] or [f"rank {rank}" for rank in range(self.job.nodes)]
        nodes = tuple(
            self._node(rank, None, records[rank], ready) if rank in records else NodeObservation(name, seeing.ENDED)
            for rank, name in enumerate(names)
        )
        return Observation(reading.status_of(nodes), nodes, _deleted(state, records), why="Kubernetes has nothing of the attempt any more")

    def _keep_logs(self, state: State, pods: Mapping[int, Pod], records: Mapping[int, NodeRecord]) -> None:
        """Keep the last words of containers whose launcher never began; all others write to the shared storage themselves."""
        for rank, pod in pods.items():
            path = self.folder.attempt(state.attempt) / f"node-{rank:05d}.log"
            if rank in records or pod.exit_code is None or path.exists():
                continue
            try:
                text = self.cluster.log(pod.name)
            except (ApiSilentError, ApiRefusedError) as error:
                text = str(error)
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"{text.rstrip()}\nprimus-cli: the container of {pod.name} ended with exit code {pod.exit_code}: {last}\n", "utf-8"
            )


def _why(nodes: tuple[NodeObservation, ...], pods: Mapping[int, Pod], *, held: bool) -> str:
    """Say why an attempt does not run yet."""
    told = dict.fromkeys(node.why for node in nodes if node.state == seeing.ABSENT and node.why)
    if held:
        return "Kubernetes holds the job back: its queue has not admitted it"
    if told:
        return f"Kubernetes: {'; '.join(told)}"
    return "" if pods else "Kubernetes has made no pods yet"


def _deleted(state: State, records: Mapping[int, NodeRecord]) -> str:
    """Return the verdict on an attempt whose objects somebody deletes: as good as a cancel, unless this watcher did, or all was over."""
    over = bool(records) and all(record.exit_code == 0 for record in records.values())
    return "" if state.stopping or over else seeing.CANCELLED


def _made(start: Start, form: str) -> set[tuple[Kind, str]]:
    return {(kind, sent["metadata"]["name"]) for kind, sent in making.objects(start, form)}


def _person() -> making.Person:
    """Return the numbers of the job's user, as whom this watcher runs."""
    try:
        return person(pwd.getpwuid(os.geteuid()))
    except KeyError:
        return making.Person(os.geteuid(), os.getegid())
