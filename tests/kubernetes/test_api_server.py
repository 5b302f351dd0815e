"""Test that the API server of the tests schedules pods, runs controllers, and drops unknown fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubernetes.api_server import ApiServer, down, up
from tests.kubernetes.fake_kubelet import EXIT_CODE, running_pods
from tests.kubernetes.fake_nodes import register_nodes
from tests.kubernetes.rest import Api, ApiError
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def node(api: Api, namespace: str) -> Iterator[str]:
    """A Node with eight GPUs and a label for the pods of this test."""
    register_nodes(api, {namespace: {"for": namespace}})
    yield namespace
    api.delete(f"/api/v1/nodes/{namespace}")


def pod(node: str, gpus: int = 8, **metadata: Any) -> dict[str, Any]:
    """Return a pod that requests GPUs of one Node."""
    container = {"name": "main", "image": "localhost/none:1", "resources": {"limits": {"amd.com/gpu": str(gpus)}}}
    spec = {"nodeSelector": {"for": node}, "containers": [container], "restartPolicy": "Never"}
    return {"metadata": metadata, "spec": spec}


def test_version(api_server: ApiServer) -> None:
    """The version is stamped into the build."""
    assert json.loads(api_server.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"] == "v1.20.2"


def test_schedules_by_gpus(api: Api, namespace: str, node: str) -> None:
    """The scheduler binds the first pod, and reports missing GPUs for the second."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.create(pods, pod(node, name="first"))
    assert until(lambda: api.get(f"{pods}/first")["spec"].get("nodeName")) == node
    api.create(pods, pod(node, name="second"))
    reason = until(lambda: api.get(f"{pods}/second")["status"].get("conditions"))[0]
    assert (reason["reason"], "Insufficient amd.com/gpu" in reason["message"]) == ("Unschedulable", True)


def test_fake_kubelet_runs_pods(api: Api, namespace: str, node: str) -> None:
    """Pods run, fail if they request it, and are removed after deletion."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with running_pods(api):
        api.create(pods, pod(node, 4, name="stays"))
        api.create(pods, pod(node, 4, name="fails", annotations={EXIT_CODE: "3"}))
        until(lambda: api.get(f"{pods}/fails")["status"]["phase"] == "Failed")
        until(lambda: api.get(f"{pods}/stays")["status"]["phase"] == "Running")
        api.delete(f"{pods}/stays")
        until(lambda: [one["metadata"]["name"] for one in api.items(pods)] == ["fails"])


def test_job_completes(api: Api, namespace: str, node: str) -> None:
    """The Job controller creates pods, the fake kubelet completes them, and the Job is complete."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    with running_pods(api):
        api.create(jobs, {"metadata": {"name": "job"}, "spec": {"completions": 2, "template": {"spec": pod(node, 1)["spec"]}}})
        assert until(lambda: api.get(f"{jobs}/job")["status"].get("succeeded", 0) == 2)


def test_unknown_field_is_dropped(api: Api, namespace: str, node: str) -> None:
    """A field of a later version is accepted and not stored."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    spec = {"suspend": True, "template": {"spec": pod(node, 1)["spec"]}}
    assert "suspend" not in api.create(jobs, {"metadata": {"name": "job"}, "spec": spec})["spec"]


def test_server_side_apply_conflicts(api: Api, namespace: str) -> None:
    """A field with two managers is a conflict, unless the second one forces it."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/shared"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}}
    api.patch(path, {**body, "data": {"key": "1"}}, "apply", fieldManager="one")
    with pytest.raises(ApiError, match="409"):
        api.patch(path, {**body, "data": {"key": "2"}}, "apply", fieldManager="two")
    assert api.patch(path, {**body, "data": {"key": "2"}}, "apply", fieldManager="two", force="true")["data"] == {"key": "2"}


@pytest.mark.usefixtures("api_server")
def test_two_servers_run_in_parallel(api: Api, namespace: str, tmp_path: Path) -> None:
    """A second server has its own ports and data; stopping it leaves no process, and the first keeps running."""
    second = up(tmp_path / "second")
    try:
        names = {one["metadata"]["name"] for one in Api(second.kubeconfig).items("/api/v1/namespaces")}
        assert (namespace in names, "default" in names) == (False, True)
        assert up(tmp_path / "second") == second
    finally:
        down(tmp_path / "second")
    with pytest.raises(ConnectionError):
        Api(second.kubeconfig).get("/version")
    assert api.get("/version")["gitVersion"] == "v1.20.2"
