"""Role `higress`: ports of the nodes, which a real API server merges with the chart's workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

# The client of Kubernetes asks urllib3 in its old words when a server says no.
pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("ignore:HTTPResponse.getheaders:DeprecationWarning")]
objects = load_role_module("kube_common", "kube_objects")
higress = load_filters("higress")


def chart_workload(namespace: str, image: str) -> dict[str, Any]:
    """Return the parts of the chart's DaemonSet that matter here."""
    container = {"name": "higress-gateway", "image": image, "ports": [{"containerPort": 15020, "protocol": "TCP", "name": "istio-prom"}]}
    labels = {"app": "higress-gateway"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    metadata = {"name": "higress-gateway", "namespace": namespace}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def test_ports_of_the_nodes_stay_through_an_upgrade_and_can_be_removed(api_server: ApiServer, api: Api, namespace: str) -> None:
    """The chart's own ports stay, a second apply changes nothing, and an upgrade of the chart keeps the role's ports."""
    helm, role = (objects.Cluster(str(api_server.kubeconfig), dry_run=False) for _ in range(2))
    helm.manager = "helm"

    def ports() -> dict[int, int]:
        found = api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/higress-gateway")["spec"]["template"]["spec"]["containers"][0]
        return {one["containerPort"]: one.get("hostPort", 0) for one in found["ports"]}

    def apply(listed: list[int]) -> dict[str, Any]:
        return dict(objects.apply_objects(role, higress.host_ports("DaemonSet", namespace, listed)))

    objects.apply_objects(helm, [chart_workload(namespace, "gateway:1")])
    first, again = (apply([80, 8443]) for _ in range(2))
    objects.apply_objects(helm, [chart_workload(namespace, "gateway:2")])
    upgraded = ports()
    apply([])

    assert (len(first["applied"]), first["dropped"], again["applied"]) == (1, [], [])
    assert upgraded == {15020: 0, 80: 80, 443: 8443}
    assert ports() == {15020: 0}
