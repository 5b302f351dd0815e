"""The Kubernetes objects of an attempt, and the observation of its pods."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.watch import kubernetes_objects as manifests
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.job_spec import Job, read_job
from primus_bootstrap.launch.watch.job_spec_kubernetes import RANKS, Kubernetes
from primus_bootstrap.launch.watch.node_record import NodeRecord
from primus_bootstrap.launch.watch.observation import NodeObservation
from primus_bootstrap.launch.watch.targets import kubernetes_pods as pod_status

RECORD = NodeRecord(0, "gpu1", "pod-a", "boot", "primus-job-try-0a1b2c-1", 1.0, address="10.1.0.4", pod="a")


def a_job(nodes: int = 2, **pods: Any) -> Job:
    """Return a Kubernetes job, read from job.json."""
    wanted = {"image": "registry.example.com/train:1", "namespace": "jobs", **pods}
    said = {
        "schema": "primus.job/1",
        "id": "try-0a1b2c",
        "name": "try",
        "user": "ada",
        "target": "kubernetes",
        "nodes": nodes,
        "words": ["train"],
    }
    return read_job(json.dumps({**said, "kubernetes": wanted}), origin="job.json")


def a_start(**pods: Any) -> manifests.Start:
    """Return the third attempt of the job."""
    words = ("python3", "-I", "/jfs/primus/jobs/try-0a1b2c/primus-cli", "attempt", "--attempt", "3")
    return manifests.Start(a_job(**pods), 3, words, manifests.PodUser(5001, 5001, (44,)), excluded=("gpu7", "gpu9"))


def pod_spec(**pods: Any) -> dict[str, Any]:
    """Return the pods' spec."""
    spec: dict[str, Any] = manifests.indexed_job(a_start(**pods))["spec"]["template"]["spec"]
    return spec


def a_pod(name: str = "a", rank: int = 0, **status: Any) -> dict[str, Any]:
    """Return a pod on gpu1, running and ready by default."""
    whole = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"state": {"running": {}}}],
        **status,
    }
    metadata = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {manifests.INDEX: str(rank)}}
    return {"metadata": metadata, "spec": {"nodeName": "gpu1"}, "status": whole}


def test_a_pod_runs_once_per_node_as_the_jobs_user() -> None:
    """With the user's ids, a grace period, and without a token for the API server."""
    spec = pod_spec()
    security = spec["securityContext"]

    assert (spec["restartPolicy"], spec["automountServiceAccountToken"], spec["terminationGracePeriodSeconds"]) == ("Never", False, 150)
    assert (security["runAsUser"], security["runAsGroup"], security["supplementalGroups"], security["runAsNonRoot"]) == (
        5001,
        5001,
        [44],
        True,
    )
    (alone,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert alone["topologyKey"] == "kubernetes.io/hostname"
    assert alone["labelSelector"]["matchLabels"][manifests.JOB] == "try-0a1b2c"


def test_pods_have_the_groups_of_their_user_and_of_the_job() -> None:
    """AMD GPUs belong to a group of the node, whose number differs between systems."""
    groups = [pod_spec(**given)["securityContext"]["supplementalGroups"] for given in ({}, {"groups": [993, 44, 110]})]

    assert groups == [[44], [44, 993, 110]]


def test_excluded_nodes_are_avoided_and_spares_come_last() -> None:
    """The API allows one name per requirement. Spares are a preference."""
    nodes = pod_spec(spares=["gpu8"])["affinity"]["nodeAffinity"]
    (term,) = nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert [one["values"] for one in term["matchFields"]] == [["gpu7"], ["gpu9"]]
    assert {(one["key"], one["operator"]) for one in term["matchFields"]} == {("metadata.name", "NotIn")}
    (preferred,) = nodes["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"][0]["values"] == ["gpu8"]
    assert (
        "nodeAffinity"
        not in manifests.indexed_job(manifests.Start(a_job(), 1, (), manifests.PodUser(1, 1)))["spec"]["template"]["spec"]["affinity"]
    )


def test_pods_request_devices_and_tolerate_their_taints() -> None:
    """GPUs and RDMA devices. Pods with RDMA may pin memory."""
    spec = pod_spec(resources={"amd.com/gpu": "8", "rdma/hca": "1", "cpu": "96"}, tolerations=[{"key": "team", "operator": "Exists"}])
    container = spec["containers"][0]

    assert container["resources"]["limits"] == container["resources"]["requests"] == {"amd.com/gpu": "8", "rdma/hca": "1", "cpu": "96"}
    assert [one["key"] for one in spec["tolerations"]] == ["team", "amd.com/gpu", "rdma/hca"]
    assert container["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
    assert "capabilities" not in pod_spec()["containers"][0]["securityContext"]


@pytest.mark.parametrize(
    ("claim", "volume"),
    [("", {"hostPath": {"path": "/jfs", "type": "Directory"}}), ("shared", {"persistentVolumeClaim": {"claimName": "shared"}})],
)
def test_storage_has_the_same_path_as_on_the_hosts(claim: str, volume: dict[str, Any]) -> None:
    """From the host, with mount propagation, or from a claim."""
    spec = pod_spec(claim=claim)
    mount = spec["containers"][0]["volumeMounts"][0]

    assert spec["volumes"][0] == {"name": "storage", **volume}
    assert mount["mountPath"] == "/jfs"
    assert ("mountPropagation" in mount) == (not claim)


def test_no_value_of_the_environment_is_in_a_pod() -> None:
    """The launcher reads job.json from the job's folder, and Secrets are only named."""
    start = manifests.Start(a_job(secrets=["site-token"]), 1, ("python3",), manifests.PodUser(1, 1))
    container = manifests.indexed_job(start)["spec"]["template"]["spec"]["containers"][0]

    assert container["envFrom"] == [{"secretRef": {"name": "site-token"}}]
    assert {one["name"] for one in container["env"]} == {"PRIMUS_POD_NODE", "PRIMUS_POD_IP", "PRIMUS_POD_NAME", "HOME", "USER"}


def test_a_queue_and_its_priority_are_labels_of_the_object() -> None:
    """Its topology is an annotation of the pods. Without a queue, a priority is a PriorityClass."""
    made = manifests.indexed_job(a_start(queue="training", priority="high", topology="example.com/rack"))

    assert made["metadata"]["labels"][manifests.QUEUE] == "training"
    assert made["metadata"]["labels"][manifests.PRIORITY] == "high"
    assert made["spec"]["template"]["metadata"]["annotations"] == {manifests.TOPOLOGY: "example.com/rack"}
    assert manifests.QUEUE not in made["spec"]["template"]["metadata"]["labels"]
    assert pod_spec(priority="high")["priorityClassName"] == "high"
    assert "priorityClassName" not in made["spec"]["template"]["spec"]
    assert "podAffinity" not in made["spec"]["template"]["spec"]["affinity"]


def test_without_a_queue_the_scheduler_keeps_pods_near_each_other() -> None:
    """As a preference, by the label of the topology."""
    affinity = pod_spec(topology="example.com/rack")["affinity"]
    (near,) = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]

    assert near["podAffinityTerm"]["topologyKey"] == "example.com/rack"
    assert near["podAffinityTerm"]["labelSelector"]["matchLabels"][manifests.JOB] == "try-0a1b2c"
    assert affinity["podAntiAffinity"] == pod_spec()["affinity"]["podAntiAffinity"]
    assert "podAffinity" not in pod_spec()["affinity"]


@pytest.mark.parametrize(
    ("form", "kinds"),
    [("indexed", ["Job"]), ("jobset", ["JobSet"]), ("trainjob", ["TrainingRuntime", "TrainJob"]), ("ranks", ["Job", "Job"])],
)
def test_every_form_has_the_same_labels_and_never_restarts(form: str, kinds: list[str]) -> None:
    """Names are short enough for the pods' names."""
    made = manifests.objects(a_start(host_network=True), form)
    text = json.dumps([sent for _, sent in made])

    assert [sent["kind"] for _, sent in made] == kinds
    assert all({manifests.JOB, manifests.ATTEMPT, manifests.MANAGED} <= set(sent["metadata"]["labels"]) for _, sent in made)
    assert max(len(sent["metadata"]["name"]) for _, sent in made) <= 54
    assert '"hostNetwork": true' in text
    assert ('"backoffLimit": 0' in text) != (kinds == ["TrainJob"])


def test_a_job_per_rank_has_its_rank() -> None:
    """In the environment and as a label."""
    one, two = (sent for _, sent in manifests.objects(a_start(), RANKS))

    assert [sent["metadata"]["name"] for sent in (one, two)] == ["try-0a1b2c-3-r0", "try-0a1b2c-3-r1"]
    assert {"name": "JOB_COMPLETION_INDEX", "value": "1"} in two["spec"]["template"]["spec"]["containers"][0]["env"]
    assert two["spec"]["template"]["metadata"]["labels"][manifests.RANK] == "1"


def test_a_field_that_the_server_dropped_is_named() -> None:
    """Old servers silently drop unknown fields. A normalized value is not a dropped field."""
    sent = manifests.indexed_job(a_start(resources={"cpu": "1000m"}))["spec"]
    kept = copy.deepcopy(sent)
    kept["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    del kept["ttlSecondsAfterFinished"]

    assert manifests.dropped(sent, kept) == ""
    del kept["completionMode"]
    assert manifests.dropped(sent, kept) == "completionMode"
    kept["completionMode"] = "Indexed"
    del kept["template"]["spec"]["containers"][0]["command"]
    assert manifests.dropped(sent, kept) == "template.spec.containers.command"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"image": ""}, "kubernetes.image: expected an image, found ''"),
        ({"namespace": "My_Jobs"}, "kubernetes.namespace: expected a namespace, found 'My_Jobs'"),
        ({"form": "pod"}, "kubernetes.form: expected one of auto, trainjob, jobset, indexed, ranks, found 'pod'"),
        ({"storage": "jfs"}, "kubernetes.storage: expected an absolute path, found 'jfs'"),
        ({"host_network": "yes"}, "kubernetes.host_network: expected true or false, found 'yes'"),
        ({"resources": {"cpu": "many"}}, "kubernetes.resources.cpu: expected a quantity like 16Gi, as text, found 'many'"),
        ({"resources": []}, "kubernetes.resources: expected a mapping"),
        ({"node_selector": {"pool": 1}}, "kubernetes.node_selector.pool: expected text, found 1"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "kubernetes.tolerations[0].effect"),
        ({"secrets": ["My Secret"]}, "kubernetes.secrets[0]: expected a name of Kubernetes, found 'My Secret'"),
        ({"groups": ["render"]}, "kubernetes.groups[0]: expected a whole number, found 'render'"),
        ({"groups": [1, 2147483647, 2147483648]}, "kubernetes.groups[2]: expected a number from 1 to 2147483647, found 2147483648"),
        ({"groups": [1, 0]}, "kubernetes.groups[1]: expected a number from 1 to 2147483647, found 0"),
        ({"que": "a"}, "kubernetes.que: unknown key"),
    ],
)
def test_an_invalid_kubernetes_block_is_refused_with_its_path(given: dict[str, Any], what: str) -> None:
    """job.json is checked as a whole before anything runs."""
    with pytest.raises(UsageError) as refused:
        a_job(**given)

    assert what in refused.value.what
    assert refused.value.what.count("\n") == 0


def test_the_kubernetes_block_belongs_to_the_target_kubernetes() -> None:
    """Other targets refuse it, and this one requires it."""
    said = {"schema": "primus.job/1", "id": "try-0a1b2c", "name": "try", "user": "ada", "nodes": 1, "words": ["train"]}
    with pytest.raises(UsageError, match="kubernetes: the target is slurm"):
        read_job(json.dumps({**said, "target": "slurm", "kubernetes": {"image": "a", "namespace": "b"}}), origin="job.json")
    with pytest.raises(UsageError, match="kubernetes: missing"):
        read_job(json.dumps({**said, "target": "kubernetes"}), origin="job.json")
    with pytest.raises(ValueError, match="a job of slurm"):
        _ = read_job(json.dumps({**said, "target": "slurm"}), origin="job.json").pods


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, (True, True, None, "", "")),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, (True, False, None, "", "")),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 75}}}]}, (False, False, 75, "", "")),
        ({"phase": "Failed", "containerStatuses": [], "reason": "Evicted"}, (False, False, None, "", "")),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such\nhost"}}}]},
            (False, False, None, "ErrImagePull: no such host", ""),
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [],
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}],
            },
            (False, False, None, "", "0/3 nodes"),
        ),
    ],
)
def test_read_pod(status: dict[str, Any], expected: tuple[bool, bool, int | None, str, str]) -> None:
    """Only a terminated container proves that nothing runs; others may set the phase."""
    pod = pod_status.read_pod(a_pod(**status))

    assert pod is not None
    assert (pod.running, pod.well, pod.exit_code, pod.stuck, pod.waits) == expected


def test_a_pod_that_the_scheduler_disrupted_was_preempted() -> None:
    """A pod evicted for another reason was not, and a pod without a rank is ignored."""
    told = {"type": "DisruptionTarget", "status": "True"}
    found = [
        pod_status.read_pod(a_pod(conditions=[{**told, "reason": reason}])) for reason in ("PreemptionByScheduler", "EvictionByEvictionAPI")
    ]

    assert [pod.preempted for pod in found if pod] == [True, False]
    assert pod_status.read_pod({"metadata": {"name": "a"}}) is None


def test_a_replacement_pod_does_not_count() -> None:
    """The record of the launcher decides which pod counts."""
    pods = [pod for pod in (pod_status.read_pod(a_pod(name)) for name in ("a", "b")) if pod]

    assert pod_status.by_rank(pods, {})[0].name == "b"
    assert pod_status.by_rank(pods, {0: RECORD})[0].name == "a"
    assert pod_status.by_rank(pods[1:], {0: RECORD}) == {}


ENDED = NodeRecord(0, "gpu1", "pod-a", "boot", "", 1.0, ended=2.0, exit_code=75, pod="a")
GONE = {"phase": "Failed", "containerStatuses": []}
NO_DEVICES = "UnexpectedAdmissionError: Allocate failed: no devices"
REFUSED = {**GONE, "reason": "UnexpectedAdmissionError", "message": "Allocate failed:\n no devices"}


@pytest.mark.parametrize(
    ("status", "record", "ready", "expected"),
    [
        ({}, None, None, NodeObservation("gpu1", observations.RUNNING)),
        ({}, RECORD, None, NodeObservation("gpu1", observations.RUNNING)),
        ({}, RECORD, False, NodeObservation("gpu1", observations.SILENT, why="Kubernetes reports it as not ready")),
        (None, RECORD, False, NodeObservation("gpu1", observations.SILENT, why="Kubernetes reports it as not ready")),
        (None, ENDED, False, NodeObservation("gpu1", observations.ENDED, 75)),
        (
            None, RECORD, True,
            NodeObservation("gpu1", observations.SILENT, why="its pod is gone, and the launcher left no exit code", host_responds=True),
        ),
        (
            GONE, RECORD, True,
            NodeObservation("gpu1", observations.SILENT, why="its pod is gone, and the launcher left no exit code", host_responds=True),
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 2}}}]}, None, None,
            NodeObservation("gpu1", observations.ENDED, None, why="its container ended with 2", begun=False),
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}, RECORD, False,
            NodeObservation("gpu1", observations.ENDED, 137, why="its container ended with 137"),
        ),
        (
            {"phase": "Pending", "containerStatuses": []}, None, True,
            NodeObservation("gpu1", observations.ABSENT, why="its container is being created", placed=True),
        ),
        (REFUSED, None, True, NodeObservation("gpu1", observations.ENDED, why=NO_DEVICES, begun=False, placed=True)),
        (REFUSED, None, False, NodeObservation("gpu1", observations.SILENT, why="Kubernetes reports it as not ready")),
        (
            {**REFUSED, "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}, None, True,
            NodeObservation("gpu1", observations.ENDED, why=NO_DEVICES, begun=False),
        ),
    ],
)  # fmt: skip
def test_node_observation(status: dict[str, Any] | None, record: NodeRecord | None, ready: bool | None, expected: NodeObservation) -> None:  # noqa: FBT001
    """The record of the launcher counts first, then the kubelet, then the node. A missing pod is not a lost node."""
    pod = None if status is None else pod_status.read_pod(a_pod(**status))

    assert pod_status.node_observation("gpu1", pod, record, ready) == expected


@pytest.mark.parametrize(
    ("status", "labels", "expected"),
    [
        ({}, {}, {}),
        ({"conditions": [{"type": "Failed", "status": "False", "reason": "a"}]}, {}, {}),
        (
            {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has"}]}, {},
            dict.fromkeys((0, 1), "try has failed: BackoffLimitExceeded: Job has"),
        ),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, {manifests.RANK: "1"}, {1: "try has failed: no reason given"}),
        ({"terminalState": "Failed"}, {}, dict.fromkeys((0, 1), "try has failed: no reason given")),
        ({"terminalState": "Completed"}, {}, {}),
    ],
)  # fmt: skip
def test_a_failed_object_creates_no_more_pods(status: dict[str, Any], labels: dict[str, str], expected: dict[int, str]) -> None:
    """It belongs to all ranks, or to the one in its label."""
    item = {"metadata": {"name": "try", "labels": labels}, "status": status}

    assert pod_status.failures([item], 2) == expected


def test_only_doubtful_nodes_are_queried() -> None:
    """A cluster may have thousands of nodes."""
    well, unwell = (pod_status.read_pod(a_pod(conditions=[{"type": "Ready", "status": said}])) for said in ("True", "False"))
    assert well is not None
    assert unwell is not None

    assert [pod_status.in_doubt(0, {0: pod}, {0: RECORD}) for pod in (well, unwell)] == [False, True]
    assert pod_status.in_doubt(0, {}, {0: RECORD})
    assert not pod_status.in_doubt(0, {}, {0: ENDED})
    assert not pod_status.in_doubt(0, {}, {})


def test_hosts_are_returned_once_every_rank_has_one() -> None:
    """In the order of the ranks."""
    pods = {0: pod_status.read_pod(a_pod()), 1: pod_status.read_pod(a_pod("b", 1))}
    both = {rank: pod for rank, pod in pods.items() if pod}

    assert pod_status.node_names(2, both, {}) == ("gpu1", "gpu1")
    assert pod_status.node_names(2, {0: both[0]}, {}) == ()
    assert pod_status.node_names(1, {}, {0: RECORD}) == ("gpu1",)


def test_pods_use_the_network_of_the_host_only_on_request() -> None:
    """The default has the least privileges."""
    assert Kubernetes("image", "jobs").host_network is False
