"""Build the Kubernetes objects of an attempt. Pure functions of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.watch.job_spec_kubernetes import INDEXED, JOBSET, RANKS, TRAINJOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.launch.watch.job_spec import Job
    from primus_bootstrap.launch.watch.job_spec_kubernetes import Kubernetes

MANAGED, MANAGER = "app.kubernetes.io/managed-by", "primus-watch"
JOB, ATTEMPT, RANK = "primus-bootstrap.io/job", "primus-bootstrap.io/attempt", "primus-bootstrap.io/rank"
INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
CONTAINER = "node"  # Trainer requires this name
POD_NODE, POD_IP, POD_NAME, POD_RANK = "PRIMUS_POD_NODE", "PRIMUS_POD_IP", "PRIMUS_POD_NAME", "JOB_COMPLETION_INDEX"
_HOSTNAME = "kubernetes.io/hostname"
_AFTER_GRACE_S = 30
_KEPT_S = 24 * 3600  # how long the cluster keeps ended objects, if it cleans up by itself
# Fields that a server may drop: Jobs clean up by themselves from 1.21 on.
_MAY_BE_DROPPED = ("ttlSecondsAfterFinished",)


@dataclass(frozen=True)
class Kind:
    """A kind of object, and its path at the API server; `form` is the form of attempts that consist of it."""

    form: str
    group: str
    version: str
    name: str
    plural: str

    @property
    def api_version(self) -> str:
        """Group and version, as in the field apiVersion."""
        return f"{self.group}/{self.version}"

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of all objects in a namespace, or of one of them."""
        return f"/apis/{self.api_version}/namespaces/{namespace}/{self.plural}{'/' + name if name else ''}"


BATCH_JOB = Kind(INDEXED, "batch", "v1", "Job", "jobs")
JOB_SET = Kind(JOBSET, "jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
TRAIN_JOB = Kind(TRAINJOB, "trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
RUNTIME = Kind(TRAINJOB, "trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", "trainingruntimes")
KINDS = (TRAIN_JOB, RUNTIME, JOB_SET, BATCH_JOB)
FORMS = (TRAINJOB, JOBSET, INDEXED, RANKS)


@dataclass(frozen=True)
class PodUser:
    """The ids with which the pods run: those of the job's user, because shared storage uses them."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Start:
    """One attempt: its number, the command line of its containers, and the nodes that it avoids."""

    job: Job
    attempt: int
    words: tuple[str, ...]
    user: PodUser
    excluded: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the object; short enough for the names of its pods (63 characters)."""
        return f"{self.job.id}-{self.attempt}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its objects and pods."""
        return {MANAGED: MANAGER, JOB: self.job.id, ATTEMPT: str(self.attempt)}


def selector(job: str, attempt: int | None = None) -> str:
    """Return the label selector for the objects and pods of a job, or of one attempt."""
    return f"{MANAGED}={MANAGER},{JOB}={job}" + (f",{ATTEMPT}={attempt}" if attempt is not None else "")


def objects(start: Start, form: str) -> list[tuple[Kind, dict[str, Any]]]:
    """Return the objects of an attempt, in the order of creation."""
    if form == RANKS:
        return [(BATCH_JOB, rank_job(start, rank)) for rank in range(start.job.nodes)]
    if form == JOBSET:
        return [(JOB_SET, _object(JOB_SET, start, _job_set(start)))]
    if form == TRAINJOB:
        return [(RUNTIME, _object(RUNTIME, start, _runtime(start))), (TRAIN_JOB, _object(TRAIN_JOB, start, _train_job(start)))]
    return [(BATCH_JOB, indexed_job(start))]


def indexed_job(start: Start) -> dict[str, Any]:
    """Return one Job for all ranks."""
    return _object(BATCH_JOB, start, _indexed(start))


def rank_job(start: Start, rank: int) -> dict[str, Any]:
    """Return the Job of one rank, for servers without Indexed Jobs."""
    manifest = _object(BATCH_JOB, start, {"backoffLimit": 0, "template": _template(start, rank)})
    manifest["metadata"]["name"] = f"{start.name}-r{rank}"
    manifest["metadata"]["labels"][RANK] = str(rank)
    return manifest


def dropped(sent: Any, kept: Any, path: str = "") -> str:
    """Return the path of the first field that the API server dropped; empty if it stored all fields.

    Old servers silently drop unknown fields. Values are not compared: servers normalize quantities, and a webhook may change an image.
    """
    if isinstance(sent, dict):
        if not isinstance(kept, dict):
            return path
        for key, value in sent.items():
            if key in _MAY_BE_DROPPED or value in ({}, [], "", 0, None):
                continue
            if key not in kept:
                return f"{path}.{key}".lstrip(".")
            if missing := dropped(value, kept[key], f"{path}.{key}".lstrip(".")):
                return missing
    if isinstance(sent, list) and isinstance(kept, list):
        return next((missing for one, other in zip(sent, kept) if (missing := dropped(one, other, path))), "")  # noqa: B905 - Python 3.9
    return ""


def _object(kind: Kind, start: Start, spec: dict[str, Any]) -> dict[str, Any]:
    pods = start.job.pods
    labels = start.labels
    if pods.queue and kind is not RUNTIME:
        labels.update({QUEUE: pods.queue, **({PRIORITY: pods.priority} if pods.priority else {})})
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": start.name, "namespace": pods.namespace, "labels": labels},
        "spec": spec if kind in (RUNTIME, TRAIN_JOB) else {**spec, "ttlSecondsAfterFinished": _KEPT_S},
    }


def _indexed(start: Start) -> dict[str, Any]:
    """Return the spec of a Job. The watcher restarts attempts, the cluster never does."""
    nodes = start.job.nodes
    return {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "template": _template(start),
    }


def _job_set(start: Start) -> dict[str, Any]:
    return {
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "n", "replicas": 1, "template": {"spec": _indexed(start)}}],
    }


def _runtime(start: Start) -> dict[str, Any]:
    """Return a runtime for this attempt, with the settings that TrainJob itself lacks, for every version of Trainer."""
    ancestor = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    replicated = {"name": "n", "template": {"metadata": {"labels": ancestor}, "spec": {"backoffLimit": 0, "template": _template(start)}}}
    return {
        "mlPolicy": {"numNodes": start.job.nodes},
        "template": {"spec": {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [replicated]}},
    }


def _train_job(start: Start) -> dict[str, Any]:
    runtime = {"apiGroup": RUNTIME.group, "kind": RUNTIME.name, "name": start.name}
    return {"runtimeRef": runtime, "trainer": {"numNodes": start.job.nodes}}


def _template(start: Start, rank: int | None = None) -> dict[str, Any]:
    pods = start.job.pods
    metadata: dict[str, Any] = {"labels": {**start.labels, **({} if rank is None else {RANK: str(rank)})}}
    if pods.topology and pods.queue:
        metadata["annotations"] = {TOPOLOGY: pods.topology}
    return {"metadata": metadata, "spec": _pod(start, rank)}


def _pod(start: Start, rank: int | None) -> dict[str, Any]:
    pods, user = start.job.pods, start.user
    groups = list(dict.fromkeys((*user.groups, *pods.groups)))
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # training does not use the API server
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": start.job.grace_s + _AFTER_GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user.uid,
            "runAsGroup": user.gid,
            **({"supplementalGroups": groups} if groups else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _affinity(start),
        "tolerations": tolerations(pods),
        "containers": [_container(start, rank)],
        "volumes": [
            {"name": "storage", **_storage(pods)},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}},
        ],
    }
    if user.uid == 0:  # a job of root, which the role refuses
        del pod["securityContext"]["runAsNonRoot"]
    if pods.host_network:
        pod.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    if pods.node_selector:
        pod["nodeSelector"] = dict(pods.node_selector)
    if pods.priority and not pods.queue:
        pod["priorityClassName"] = pods.priority
    if pods.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in pods.pull_secrets]
    return pod


def _container(start: Start, rank: int | None) -> dict[str, Any]:
    pods = start.job.pods
    fields = {POD_NODE: "spec.nodeName", POD_IP: "status.podIP", POD_NAME: "metadata.name"}
    environment: list[dict[str, Any]] = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    environment += [{"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": start.job.user}]  # noqa: S108 - the container's own
    if rank is not None:
        environment.append({"name": POD_RANK, "value": str(rank)})
    manifest: dict[str, Any] = {
        "name": CONTAINER,
        "image": pods.image,
        "command": list(start.words),
        "env": environment,
        "securityContext": {"allowPrivilegeEscalation": False, **_capabilities(pods)},
        # The pod must see a volume that is mounted again on the host.
        "volumeMounts": [
            {"name": "storage", "mountPath": pods.storage, **({} if pods.claim else {"mountPropagation": "HostToContainer"})},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's own
        ],
    }
    if pods.resources:
        manifest["resources"] = {"requests": dict(pods.resources), "limits": dict(pods.resources)}
    if pods.secrets:
        manifest["envFrom"] = [{"secretRef": {"name": name}} for name in pods.secrets]
    return manifest


def _capabilities(pods: Kubernetes) -> dict[str, Any]:
    """Allow pods with RDMA to pin memory."""
    rdma = pods.host_network or any(name.startswith("rdma/") for name in pods.resources)
    return {"capabilities": {"add": ["IPC_LOCK"]}} if rdma else {}


def _storage(pods: Kubernetes) -> dict[str, Any]:
    if pods.claim:
        return {"persistentVolumeClaim": {"claimName": pods.claim}}
    return {"hostPath": {"path": pods.storage, "type": "Directory"}}


def tolerations(pods: Kubernetes) -> list[dict[str, str]]:
    """Return the tolerations of a pod. They include taints named like its devices, which reserve nodes for pods that use these."""
    devices = [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in sorted(pods.resources) if "/" in name]
    return [*(toleration.to_json() for toleration in pods.tolerations), *devices]


def _affinity(start: Start) -> dict[str, Any]:
    """Return rules for one pod per node, near each other unless a queue places them, not on excluded nodes, and on spares last."""
    own = {"labelSelector": {"matchLabels": {MANAGED: MANAGER, JOB: start.job.id}}}
    manifest: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{**own, "topologyKey": _HOSTNAME}]}}
    if (level := start.job.pods.topology) and not start.job.pods.queue:
        near = {"weight": 100, "podAffinityTerm": {**own, "topologyKey": level}}
        manifest["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [near]}
    nodes: dict[str, Any] = {}
    if start.excluded:
        off = [_off("metadata.name", [name]) for name in start.excluded]  # by its name: another node may have the same label
        nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchFields": off}]}
    if spares := start.job.pods.spares:
        preference = {"matchExpressions": [_off(_HOSTNAME, spares)]}
        nodes["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "preference": preference}]
    return {**manifest, **({"nodeAffinity": nodes} if nodes else {})}


def _off(key: str, names: Iterable[str]) -> Mapping[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(names)}
