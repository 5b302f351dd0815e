"""Test jobs with the target `kubernetes` on a real API server; the pods' commands run as processes of this machine."""

from __future__ import annotations

import base64
import json
import os
import pwd
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.launch.watch.broker_client import Broker
from primus_bootstrap.launch.watch.job_state import Attempt, State
from primus_bootstrap.launch.watch.kube_api import Api as WatchApi
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError
from primus_bootstrap.launch.watch.kube_broker import BrokeredCluster
from primus_bootstrap.launch.watch.kubernetes_objects import JOB
from primus_bootstrap.launch.watch.targets.kubernetes import KubernetesTarget
from tests.integration.watch_rig import TRAIN, Site, events, steps
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.process_kubelet import Kubelets
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

ACCESS = Path(__file__).resolve().parents[2] / "roles" / "primus_watch" / "files" / "kubernetes.yml"
# Rank 0 trains; the others are there until it ends, as they would be in an all-reduce.
FOLLOW = """
import os, pathlib, signal, sys, time
os.environ["NODE_NAME"] = os.environ["PRIMUS_POD_NODE"]
if os.environ.get("RANK", "0") != "0":
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    over = pathlib.Path(os.environ["RUN_DIR"], "checkpoints", f"step-{int(sys.argv[1]):08d}")
    while not over.exists() and not asked:
        time.sleep(0.1)
    sys.exit(75 if asked else 0)
"""


@pytest.fixture
def nodes(api: Api, namespace: str) -> Iterator[list[str]]:
    """Three Nodes with eight GPUs each for the jobs of this test."""
    names = [f"{namespace}-{number}" for number in (1, 2, 3)]
    register_nodes(api, {name: {"for": namespace} for name in names})
    yield names
    for name in names:
        api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def kubelets(api: Api, namespace: str, nodes: list[str], tmp_path: Path) -> Iterator[Kubelets]:
    """The kubelets of these Nodes."""
    made = Kubelets(api, namespace, nodes, tmp_path)
    made.start()
    yield made
    made.end()
    assert made.broken == ""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service host."""
    made = Site(tmp_path)
    made.jobs.mkdir()
    (tmp_path / "train.py").write_text(FOLLOW + TRAIN)
    yield made
    made.end()


@pytest.fixture
def kubeconfig(api_server: ApiServer, api: Api, namespace: str, tmp_path: Path) -> Path:
    """A kubeconfig with the shipped rights of a watcher, in the test's namespace."""
    text = (
        ACCESS.read_text()
        .replace("primus-jobs", namespace)
        .replace("{name: primus-watch}", f"{{name: {namespace}}}")
        .replace("ClusterRole, name: primus-watch}", f"ClusterRole, name: {namespace}}}")
    )
    for one in yaml.safe_load_all(text):
        if one["kind"] != "Namespace":
            group = "/api/v1" if one["apiVersion"] == "v1" else f"/apis/{one['apiVersion']}"
            inside = f"/namespaces/{namespace}" if "namespace" in one["metadata"] else ""
            api.create(f"{group}{inside}/{one['kind'].lower()}s", one)
    secret = f"/api/v1/namespaces/{namespace}/secrets/primus-watch-token"
    until(lambda: "token" in api.get(secret).get("data", {}))
    token = base64.b64decode(api.get(secret)["data"]["token"]).decode()
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def job(site: Site, namespace: str, kubeconfig: Path) -> dict[str, Any]:
    """The job.json of a job with 30 steps on one Node with eight GPUs; the broker has the kubeconfig."""
    site.start_broker({"kubeconfig": str(kubeconfig), "namespaces": [namespace], "storage": [str(site.folder)]})
    pods = {
        "image": "localhost/none:1",
        "namespace": namespace,
        "storage": str(site.folder),
        "resources": {"amd.com/gpu": "8"},
        "node_selector": {"for": namespace},
    }
    return {
        "schema": "primus.job/1",
        "id": "small-0a1b2c",
        "name": "small",
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "target": "kubernetes",
        "nodes": 1,
        "words": ["30", "0.2"],
        "options": ["--single", f"--script={site.folder}/train.py"],
        "grace_s": 10,
        "policy": {"lost_after_s": 5, "settle_s": 1, "lease_s": 5, "backoff_s": [0]},
        "kubernetes": pods,
    }


def run(site: Site, job: dict[str, Any]) -> JobFolder:
    """Submit a job and watch it."""
    folder = site.submit(job)
    site.watch(folder)
    return folder


def ended(site: Site) -> int:
    """Wait for the end of the watcher."""
    assert site.watcher is not None
    return site.watcher.wait(120)


def found(folder: JobFolder) -> State:
    """Return the job's state."""
    state = folder.state()
    assert state is not None
    return state


def jobs_of(api: Api, namespace: str) -> list[str]:
    """Return the names of the namespace's Jobs."""
    return sorted(item["metadata"]["name"] for item in api.items(f"/apis/batch/v1/namespaces/{namespace}/jobs"))


def target_of(site: Site, job: dict[str, Any]) -> tuple[KubernetesTarget, State]:
    """Return a job's target, and the state of its first attempt."""
    folder = site.submit(job)
    known = folder.job()
    state = State(known.id, "starting", attempt=1, attempts=(Attempt(1, started=time.time()),))
    return KubernetesTarget(known, folder, BrokeredCluster(known, job, Broker(site.socket))), state


def test_job_runs_with_one_pod_per_node(site: Site, job: dict[str, Any], kubelets: Kubelets, api: Api, namespace: str) -> None:
    """The scheduler places it, ranks find each other without DNS, and every Node reports its exit code."""
    two = {"nodes": 2, "processes_per_node": 1, "options": [f"--script={site.folder}/train.py"], "words": ["5", "0.1"]}
    folder = run(site, {**job, **two})

    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    state = found(folder)
    assert (state.phase, state.step, state.restarts) == ("done", 5, 0), state
    assert len({host.name for host in state.hosts}) == 2
    assert {pod["spec"]["nodeName"] for pod in kubelets.pods()} == {host.name for host in state.hosts}
    # This server's Jobs know no index, which it does not say.
    assert jobs_of(api, namespace) == ["small-0a1b2c-1-r0", "small-0a1b2c-1-r1"]


def test_job_continues_after_a_lost_node(site: Site, job: dict[str, Any], kubelets: Kubelets) -> None:
    """The job continues from its checkpoint without the lost Node, and reports the lost time."""
    folder = run(site, job)
    until(lambda: len(steps(folder)) >= 7)
    gone = found(folder).hosts[0].name
    began = time.time()
    kubelets.lose(gone)

    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    state = found(folder)
    second = events(folder, "first_step")[1]
    print(f"a node lost: the next step came after {second['time'] - began:.1f} s")  # noqa: T201 - a figure for docs/workloads.md
    assert (state.phase, state.step, state.attempt) == ("done", 30, 2), state
    assert gone not in {host.name for host in state.hosts}
    assert [(event["host"]) for event in events(folder, "node_excluded")] == [gone]
    assert sorted({line["step"] for line in steps(folder)}) == list(range(1, 31))
    assert second["step"] > 5  # from the checkpoint, not from the beginning


def test_cancel_removes_only_its_own_objects(site: Site, job: dict[str, Any], kubelets: Kubelets, api: Api, namespace: str) -> None:
    """The pods get their grace period; another Job, also with the same label, stays."""
    template = {"spec": {"restartPolicy": "Never", "nodeSelector": {"for": "nobody"}, "containers": [{"name": "a", "image": "a"}]}}
    for name, labels in (("others", {}), ("others-label", {JOB: "small-0a1b2c"})):
        made = {"metadata": {"name": name, "labels": labels}, "spec": {"template": template}}
        api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", made)
    folder = run(site, job)
    until(lambda: len(steps(folder)) >= 3)
    folder.request("cancel")

    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    state = found(folder)
    assert (state.phase, state.current.exit_code) == ("cancelled", 75), state
    assert state.checkpoint == steps(folder)[-1]["step"]
    until(lambda: jobs_of(api, namespace) == ["others", "others-label"])
    assert len(kubelets.containers) == 1


def test_deleted_job_is_cancelled_and_can_be_resumed(site: Site, job: dict[str, Any], kubelets: Kubelets, api: Api, namespace: str) -> None:
    """`kubectl delete` cancels the job; `workload resume` continues at its checkpoint."""
    folder = run(site, job)
    until(lambda: len(steps(folder)) >= 7)
    for name in jobs_of(api, namespace):
        api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", propagationPolicy="Foreground")
    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    state = found(folder)
    assert (state.phase, state.reason) == ("cancelled", "cancelled in Kubernetes, not by a request to the watcher"), state
    folder.request("resume")
    site.watch(folder)

    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    assert (found(folder).phase, found(folder).attempt) == ("done", 2)
    assert sorted({line["step"] for line in steps(folder)}) == list(range(1, 31))
    assert len(kubelets.containers) == 2


def test_restarted_watcher_finds_its_attempt(site: Site, job: dict[str, Any], kubelets: Kubelets) -> None:
    """The objects are found by their labels; nothing starts twice."""
    folder = run(site, {**job, "words": ["15", "0.2"]})
    until(lambda: len(steps(folder)) >= 3)
    site.kill_watcher()
    site.watch(folder)

    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    assert (found(folder).phase, found(folder).attempt) == ("done", 1)
    assert len(kubelets.containers) == 1


def test_job_waits_for_the_scheduler(site: Site, job: dict[str, Any], kubelets: Kubelets) -> None:
    """The state has the scheduler's message and is not a failure; the job starts when there is capacity."""
    for node in kubelets.nodes:
        kubelets.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    folder = run(site, {**job, "words": ["3", "0.1"]})
    until(lambda: (state := folder.state()) and "nodes are available" in state.reason)
    kubelets.api.patch(f"/api/v1/nodes/{kubelets.nodes[0]}", {"spec": {"unschedulable": False}})

    assert ended(site) == 0
    assert (found(folder).phase, found(folder).restarts) == ("done", 0)


def test_eviction_is_not_a_lost_node(site: Site, job: dict[str, Any], kubelets: Kubelets) -> None:
    """The job writes a checkpoint and continues; no host is excluded."""
    folder = run(site, job)
    until(lambda: len(steps(folder)) >= 7)
    pod = kubelets.pods()[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kubelets.namespace}}
    kubelets.api.create(f"/api/v1/namespaces/{kubelets.namespace}/pods/{pod}/eviction", eviction)

    assert ended(site) == 0, (site.folder / "watch.log").read_text()
    assert (found(folder).phase, events(folder, "node_excluded")) == ("done", [])
    assert found(folder).attempt >= 2


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"form": "indexed"}, "its Jobs have no completionMode"),
        ({"form": "jobset"}, "it has no API for jobset"),
        ({"queue": "training"}, "a queue needs one object for all ranks"),
    ],
)
def test_unsupported_features_are_refused(site: Site, job: dict[str, Any], given: dict[str, Any], what: str, api: Api) -> None:
    """Kubernetes 1.20 drops the completion mode silently, and its queue cannot admit one Job per rank."""
    target, state = target_of(site, {**job, "kubernetes": {**job["kubernetes"], **given}})
    target.start(state)

    assert what in target.refused
    assert (target.observe(state).status, jobs_of(api, job["kubernetes"]["namespace"])) == ("absent", [])


def test_missing_answer_is_not_a_lost_node(site: Site, job: dict[str, Any], nodes: list[str], kubeconfig: Path) -> None:
    """A closed port and an unknown token leave the state of Nodes unknown."""
    target, state = target_of(site, job)
    target.start(state)
    assert len(target.candidates().hosts) == len(nodes)
    config = yaml.safe_load(kubeconfig.read_text())
    for changed in ({"users": [{"name": config["users"][0]["name"], "user": {"token": "wrong"}}]}, {"clusters": elsewhere(config)}):
        kubeconfig.write_text(yaml.safe_dump({**config, **changed}))
        seen = target.observe(state)
        assert (seen.status, seen.nodes, bool(seen.why)) == ("silent", (), True)
        assert target.candidates().why


def elsewhere(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the clusters of a kubeconfig with a closed port."""
    text = json.dumps(config["clusters"])
    port = text.rpartition("127.0.0.1:")[2].split('"')[0]
    return list(json.loads(text.replace(f"127.0.0.1:{port}", "127.0.0.1:9")))


def test_rights_of_the_watcher_are_limited(kubeconfig: Path, namespace: str) -> None:
    """It cannot use other namespaces, and cannot read or change secrets and Nodes."""
    api = WatchApi(kubeconfig)
    for path in ("/api/v1/namespaces/default/pods", f"/api/v1/namespaces/{namespace}/secrets", "/api/v1/pods"):
        with pytest.raises(ApiRefusedError) as refused:
            api.get(path)
        assert refused.value.status == 403
    with pytest.raises(ApiRefusedError):
        api.create("/api/v1/nodes", {"metadata": {"name": "mine"}})
