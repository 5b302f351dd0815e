"""Test the reset of an existing cluster: the objects of hosts.yaml are removed in order, and others stay."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubernetes.fake_kubelet import running_pods
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.queues_rig import GROUP, PLURALS, definition, play, write
from tests.kubernetes.release_rig import DEFINITION, helm
from tests.kubernetes.rest import ApiError
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import CompletedProcess

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

HERE = Path(__file__).parent
NAMESPACES = {"kueue-system", "team-a", "jobset-system"}
DEFINITIONS = DEFINITION.rpartition("/")[0]
PLANS = f"{DEFINITIONS}/plans.jobset.x-k8s.io"
VOLUME = "/api/v1/persistentvolumes/jobset-volume"
QUEUE = f"/apis/{GROUP}/v1beta2/clusterqueues/training"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets"
PLAN = "/apis/jobset.x-k8s.io/v1/namespaces/team-a/plans"


def is_there(api: Api, path: str) -> bool:
    """Return whether an object exists and is not being deleted."""
    try:
        return "deletionTimestamp" not in api.get(path)["metadata"]
    except ApiError as error:
        if error.status != 404:
            raise
        return False


@pytest.fixture
def folder(api: Api, api_server: ApiServer, tmp_path: Path) -> Iterator[Path]:
    """A cluster with queues, a chart, and objects of other owners."""
    register_nodes(api, {"gpu1": {"primus-bootstrap.io/gpu-model": "MI300X", "primus-bootstrap.io/rack": "r1"}}, gpus=8)
    # Somebody else's: the namespace that our chart goes to, and a release in it.
    api_server.kubectl("create", "namespace", "jobset-system")
    api_server.kubectl("create", "configmap", "theirs", "--namespace", "jobset-system")
    shutil.copytree(HERE / "charts/jobset", tmp_path / "jobset")
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nonexistent"}}
    spec = {**volume, "persistentVolumeReclaimPolicy": "Delete"}
    api.create("/api/v1/persistentvolumes", {"metadata": {"name": "jobset-volume"}, "spec": spec})
    write(
        tmp_path, api_server.kubeconfig, [definition(kind) for kind in PLURALS],
        jobset_chart_file="jobset", jobset_replicas=1, jobset_chart_values={"plans": True, "volume": "jobset-volume"},
    )  # fmt: skip
    with running_pods(api):
        yield tmp_path
        clear(api)


def clear(api: Api) -> None:
    """Remove all objects of a test, and wait until they are gone."""
    left = [f"{DEFINITIONS}/{PLURALS[kind]}.{GROUP}" for kind in PLURALS] + [DEFINITION, PLANS, VOLUME, "/api/v1/nodes/gpu1"]
    for path in [*left, *(f"/api/v1/namespaces/{name}" for name in NAMESPACES)]:
        if is_there(api, path):
            api.delete(path)
    until(lambda: not {one["metadata"]["name"] for one in api.items("/api/v1/namespaces")} & NAMESPACES, "the end of the namespaces")


def reset(folder: Path, *flags: str, confirm: str = "queues", tags: str = "") -> CompletedProcess[str]:
    """Run the playbook of the reset for Kubernetes."""
    return play(folder, "day2/reset/charts.yml", tags, "-e", f"confirm={confirm}", *flags)


def changed(done: CompletedProcess[str]) -> int:
    """Return the number of changed tasks; a failed run is an error."""
    assert done.returncode == 0, done.stdout[-3000:]
    return sum(int(number) for number in re.findall(r"changed=(\d+)", done.stdout))


def quickly(api_server: ApiServer) -> list[str]:
    """Return variables with short time limits."""
    told = {"confirm": "queues", "kubeconfig": str(api_server.kubeconfig), "delete_data": False, "timeout_s": 4}
    return ["-e", json.dumps({"kube_common_reset": told})]


@pytest.mark.fault
def test_only_objects_of_hosts_yaml_are_removed(api: Api, api_server: ApiServer, folder: Path) -> None:
    """Custom resources, releases, definitions and namespaces are removed in this order; others stay and are named."""
    applied = play(folder, "scheduling/jobs.yml", "kueue,jobset")
    assert applied.returncode == 0, applied.stdout[-3000:]
    mine: dict[str, Any] = {"metadata": {"name": "theirs"}, "spec": {}}
    api.create(JOBSETS, {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", **mine})
    api.create(PLAN, {"apiVersion": "jobset.x-k8s.io/v1", "kind": "Plan", **mine})
    wrong, of_kubespray = reset(folder, confirm="another"), reset(folder, "-e", "kubernetes_provider=kubespray")
    lost = reset(folder, *quickly(api_server))

    assert wrong.returncode != 0
    assert "the confirmation is not the cluster's name (queues)" in " ".join(wrong.stdout.split())
    assert changed(of_kubespray) == 0
    assert lost.returncode != 0
    assert "would delete objects of others: Plan team-a/theirs" in " ".join(lost.stdout.split())
    assert all(is_there(api, path) for path in (QUEUE, PLANS, "/apis/apps/v1/namespaces/jobset-system/deployments/jobset-controller"))

    # A queue whose jobs still run is held by its controller.
    api.delete(f"{PLAN}/theirs")
    api.patch(QUEUE, {"metadata": {"finalizers": ["kueue.x-k8s.io/resource-in-use"]}})
    held = reset(folder, *quickly(api_server))
    assert held.returncode != 0
    assert "still there after 4 s: ClusterQueue training" in " ".join(held.stdout.split())
    assert is_there(api, "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager")
    api.patch(QUEUE, {"metadata": {"finalizers": []}})

    assert changed(reset(folder, "--check")) == 1
    assert is_there(api, "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager")
    api_server.kubectl("create", "configmap", "theirs", "--namespace", "team-a")
    first = reset(folder, "-v")
    assert changed(first) == 1
    gone = [QUEUE, PLANS, "/api/v1/namespaces/kueue-system", *(f"{DEFINITIONS}/{PLURALS[kind]}.{GROUP}" for kind in PLURALS)]
    gone += [f"/api/v1/namespaces/jobset-system/{one}" for one in ("configmaps/jobset-settings", "configmaps/primus-bootstrap.jobset")]
    assert [path for path in gone if is_there(api, path)] == []
    stays = [
        f"{JOBSETS}/theirs",
        DEFINITION,
        "/api/v1/namespaces/jobset-system/configmaps/theirs",
        "/api/v1/namespaces/team-a/configmaps/theirs",
    ]
    assert [path for path in stays if not is_there(api, path)] == []
    # The claim went with its release, and the data did not.
    assert api.get(VOLUME)["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    for output in ("JobSet team-a/theirs", "Namespace team-a: it holds", "PersistentVolume jobset-volume: it holds the data of the claim"):
        assert output in first.stdout
    assert changed(reset(folder)) == 0

    assert changed(reset(folder, "-e", "delete_data=true")) == 1
    assert not is_there(api, "/api/v1/namespaces/team-a")
    assert is_there(api, "/api/v1/namespaces/jobset-system/configmaps/theirs")


@pytest.mark.fault
def test_earlier_release_stays(api: Api, api_server: ApiServer, folder: Path) -> None:
    """An earlier release with the same name is upgraded, reported, and not removed."""
    theirs = {"KUBECONFIG": str(api_server.kubeconfig), "HELM_NAMESPACE": "jobset-system"}
    helm("install", "jobset", HERE / "charts/jobset", env=theirs)
    applied = play(folder, "scheduling/jobs.yml", "jobset")

    assert applied.returncode == 0, applied.stdout[-3000:]
    assert "the release jobset existed before" in applied.stderr + applied.stdout
    changed(reset(folder))
    assert [one["name"] for one in json.loads(helm("list", "-o", "json", env=theirs))] == ["jobset"]
    assert is_there(api, "/apis/apps/v1/namespaces/jobset-system/deployments/jobset-controller")
