"""Test the kubeadm cluster of the tests: pods, a service, and a node that dies and returns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.kubeadm_cluster import wait_for
from tests.kubernetes.node_image import TEST_IMAGE

if TYPE_CHECKING:
    from tests.kubernetes.kubeadm_cluster import Cluster

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1200)]

WEB = {"app": "web"}
# A killed node is found out after 40 s; the rest is for a busy machine.
LIMIT_S = 240


@pytest.fixture(scope="module")
def web(kubeadm_cluster: Cluster) -> Cluster:
    """A web server on every node."""
    command = ["sh", "-c", "mkdir /w; hostname > /w/index.html; exec httpd -f -p 80 -h /w"]
    # A busy machine answers late, and a pod that is not ready holds up the roll-out.
    ready = {"httpGet": {"path": "/", "port": 80}, "timeoutSeconds": 30}
    container = {"name": "web", "image": TEST_IMAGE, "imagePullPolicy": "Never", "command": command, "readinessProbe": ready}
    spec = {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1, "containers": [container]}
    pods = {"selector": {"matchLabels": WEB}, "template": {"metadata": {"labels": WEB}, "spec": spec}}
    servers = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "web"}, "spec": pods}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": WEB, "ports": [{"port": 80}]}}
    for made in (servers, service):
        kubeadm_cluster.kubectl("apply", "--filename=-", stdin=json.dumps(made))
    kubeadm_cluster.kubectl("rollout", "status", "daemonset/web", f"--timeout={LIMIT_S}s")
    return kubeadm_cluster


def pods_of(cluster: Cluster) -> dict[str, str]:
    """Return the web servers' pods by node."""
    items = json.loads(cluster.kubectl("get", "pods", "--selector=app=web", "--output=json"))["items"]
    return {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in items}


def seen_from(cluster: Cluster, pod: str) -> set[str]:
    """Return the pods that answer at the service's address, requested from one pod."""
    address = cluster.kubectl("get", "service", "web", "--output=jsonpath={.spec.clusterIP}")
    ask = f"for n in $(seq 40); do wget -q -O - http://{address}/ || true; done"
    return set(cluster.kubectl("exec", pod, "--", "sh", "-c", ask, check=False).split())


def test_every_node_is_ready(kubeadm_cluster: Cluster) -> None:
    """The Nodes are the containers, and all are Ready."""
    assert kubeadm_cluster.ready() == dict.fromkeys(kubeadm_cluster.nodes, True)


def test_a_pod_runs_on_every_node(web: Cluster) -> None:
    """Each pod's program prints its output."""
    pods = pods_of(web)
    assert sorted(pods) == web.nodes
    assert [web.kubectl("exec", name, "--", "hostname").strip() for name in pods.values()] == list(pods.values())


def test_a_service_reaches_the_pods_of_all_nodes(web: Cluster) -> None:
    """A pod of each node can reach all pods through the service."""
    pods = pods_of(web)
    for pod in pods.values():
        wait_for(lambda pod=pod: seen_from(web, pod) == set(pods.values()), f"{pod} does not reach all of {pods}", 60)  # type: ignore[misc]


def test_killed_node_is_not_ready_until_it_returns(web: Cluster) -> None:
    """A node without power is tainted, and the others stay; after its return its pod answers again."""
    node = web.nodes[2]
    web.kill(node)
    wait_for(lambda: not web.ready()[node], f"{node} is still Ready", LIMIT_S)
    wait_for(lambda: "unreachable" in web.kubectl("get", "node", node, "--output=jsonpath={.spec.taints[*].key}"), "no taint", LIMIT_S)
    assert web.ready() == {other: other != node for other in web.nodes}
    others = {pod for own, pod in pods_of(web).items() if own != node}
    first = min(others)
    wait_for(lambda: seen_from(web, first) == others, "the service still leads to the dead node", LIMIT_S)
    web.start(node)
    wait_for(lambda: web.ready()[node], f"{node} does not come back", LIMIT_S)
    wait_for(lambda: seen_from(web, first) == {*others, pods_of(web)[node]}, "the pod of the node does not serve again", LIMIT_S)
