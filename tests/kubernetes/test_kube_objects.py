"""Test objects on a real API server: apply, check mode and removal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

# The client of Kubernetes asks urllib3 in its old words when a server says no.
pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse.getheaders:DeprecationWarning")
module = load_role_module("kube_common", "kube_objects")


def config_map(namespace: str, text: str) -> dict[str, Any]:
    """Return a ConfigMap with this data."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": namespace}, "data": {"text": text}}


def test_objects_are_applied_once(api_server: ApiServer, api: Api, namespace: str) -> None:
    """A second run and check mode change nothing; objects to keep stay unchanged."""
    cluster = module.Cluster(str(api_server.kubeconfig), dry_run=False)
    look = module.Cluster(str(api_server.kubeconfig), dry_run=True)
    path = f"/api/v1/namespaces/{namespace}/configmaps/one"
    first, again = (module.apply_objects(cluster, [config_map(namespace, "a")])["applied"] for _ in range(2))
    shown = module.apply_objects(look, [config_map(namespace, "b")])
    kept = module.apply_objects(cluster, [config_map(namespace, "b")], create_only=True)["applied"]
    before = api.get(path)["data"]
    changed = module.apply_objects(cluster, [config_map(namespace, "b")])["applied"]

    assert (first, again, kept, changed) == ([f"ConfigMap {namespace}/one"], [], [], [f"ConfigMap {namespace}/one"])
    assert "-  text: a\n+  text: b" in shown["diffs"][0]
    assert before == {"text": "a"}
    assert api.get(path)["data"] == {"text": "b"}


def test_time_limit_of_a_wait_is_reported(api_server: ApiServer, namespace: str) -> None:
    """The error names the object and the missing state."""
    cluster = module.Cluster(str(api_server.kubeconfig), dry_run=False)
    want = {"api_version": "v1", "kind": "ConfigMap", "namespace": namespace, "names": ["missing"]}

    assert module.wait_for(cluster, [want], 0) == [f"ConfigMap {namespace}/missing: it does not exist"]


def test_objects_are_removed(api_server: ApiServer, namespace: str) -> None:
    """Only existing objects are removed and reported."""
    cluster = module.Cluster(str(api_server.kubeconfig), dry_run=False)
    module.apply_objects(cluster, [config_map(namespace, "a")])
    first, again = (module.remove_objects(cluster, [config_map(namespace, "a")])["applied"] for _ in range(2))

    assert (first, again) == ([f"ConfigMap {namespace}/one"], [])


def test_object_that_is_being_deleted_is_created_again(
    api_server: ApiServer, api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module waits for the deletion; a blocked deletion fails with a fix."""
    cluster = module.Cluster(str(api_server.kubeconfig), dry_run=False)
    path = f"/api/v1/namespaces/{namespace}/configmaps/one"
    module.apply_objects(cluster, [config_map(namespace, "a")])
    first = api.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})["metadata"]["uid"]
    api.delete(path)
    monkeypatch.setitem(module.apply_objects.__globals__, "DELETION_S", 1.0)
    with pytest.raises(module.RefusedError, match=r"it is being deleted.*Fix: check its finalizers"):
        module.apply_objects(cluster, [config_map(namespace, "b")])

    monkeypatch.setitem(module.apply_objects.__globals__, "DELETION_S", 60.0)
    letting_go = threading.Timer(3, api.patch, (path, {"metadata": {"finalizers": None}}))
    letting_go.start()
    done = module.apply_objects(cluster, [config_map(namespace, "b")])
    letting_go.join()

    assert done["applied"] == [f"ConfigMap {namespace}/one"]
    made = api.get(path)
    assert (made["data"], made["metadata"]["uid"] != first) == ({"text": "b"}, True)
