"""Test labels and taints of hosts.yaml on a real API server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.kubernetes.api import Server
from primus_bootstrap.kubernetes.node_label_run import desired_nodes, update_nodes
from tests.kubernetes.fake_nodes import register_nodes
from tests.playbooks import run_playbook
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

NODES = ("kn-cp1", "kn-gpu1", "kn-gpu2")
TAINT = {"key": "theirs", "value": "x", "effect": "NoExecute"}


@pytest.fixture
def nodes(api: Api) -> Iterator[None]:
    """Three Nodes with a label of another owner, one of them with a taint of another owner."""
    register_nodes(api, {name: {"theirs": "x"} for name in NODES})
    # A new Node is tainted as not ready until the controllers have seen it; they would take the whole list back.
    until(lambda: not any(api.get(f"/api/v1/nodes/{name}")["spec"].get("taints") for name in NODES), "the controllers")
    api.patch("/api/v1/nodes/kn-gpu2", {"spec": {"taints": [TAINT]}})
    yield
    for name in NODES:
        api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def hosts(tmp_path: Path, api_server: ApiServer) -> Path:
    """A hosts.yaml of an existing cluster with a control plane, two nodes, and one host without a Node."""
    gpu1 = {"rack": "rack01", "slurm_switch": "leaf7", "gpu_env_model": "MI300X", "node_taints": ["gpu=yes:NoSchedule"]}
    groups = {"kube_control_plane": ["kn-cp1"], "kube_node": ["kn-gpu1", "kn-gpu2", "kn-absent"]}
    file = tmp_path / "hosts.yaml"
    variables = {"cluster_name": "small", "kubernetes_provider": "existing", "kubernetes_kubeconfig": str(api_server.kubeconfig)}
    members = {"kn-gpu1": gpu1, "kn-gpu2": {"node_labels": {"example.com/pool": "b"}}, "kn-cp1": None, "kn-absent": {"rack": "r"}}
    children: dict[str, Any] = {group: {"hosts": dict.fromkeys(names)} for group, names in groups.items()}
    children["k8s_cluster"] = {"children": dict.fromkeys(groups)}
    file.write_text(yaml.safe_dump({"all": {"vars": variables, "hosts": members, "children": children}}))
    return file


def play(hosts: Path, *words: str, playbook: str = "kubernetes/nodes.yml") -> str:
    """Run a playbook with plain Ansible; return its output."""
    done = run_playbook(hosts, playbook, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(output: str) -> int:
    """Return the number of changed tasks."""
    return sum(map(int, re.findall(r"changed=(\d+)", output)))


@pytest.mark.usefixtures("nodes")
def test_labels_and_taints_are_applied(hosts: Path, api: Api) -> None:
    """Check mode shows the difference and changes nothing; a second run changes nothing."""
    shown = play(hosts, "--check", "--diff")
    before = api.get("/api/v1/nodes/kn-gpu1")["metadata"]["labels"]
    first, second = play(hosts), play(hosts)
    gpu1, gpu2 = api.get("/api/v1/nodes/kn-gpu1"), api.get("/api/v1/nodes/kn-gpu2")

    assert '+  "primus-bootstrap.io/rack": "rack01"' in shown
    assert "primus-bootstrap.io/rack" not in before
    assert (changed(first), changed(second)) == (1, 0)
    labels = gpu1["metadata"]["labels"]
    assert {key: value for key, value in labels.items() if "primus-bootstrap.io" in key or key == "theirs"} == {
        "primus-bootstrap.io/rack": "rack01",
        "primus-bootstrap.io/switch": "leaf7",
        "primus-bootstrap.io/gpu-model": "MI300X",
        "theirs": "x",
    }
    assert gpu1["spec"]["taints"] == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert gpu2["metadata"]["labels"]["example.com/pool"] == "b"
    assert gpu2["spec"]["taints"] == [TAINT]


@pytest.mark.usefixtures("nodes")
def test_removed_labels_and_taints_are_deleted(api_server: ApiServer, api: Api) -> None:
    """Those of the project are deleted, also if `kubectl label` set them; a controller's label stays."""
    server = Server(api_server.kubeconfig)
    api_server.kubectl("label", "node", "kn-gpu1", "example.com/pool=a")
    variables = {"node_labels": {"example.com/pool": "a", "nfd": "yes"}, "node_taints": ["gpu=yes:NoSchedule"]}
    api.patch("/api/v1/nodes/kn-gpu1", {"metadata": {"labels": {"nfd": "yes"}}}, fieldManager="nfd-master")
    update_nodes(server, desired_nodes({"kn-gpu1": variables}))
    assert update_nodes(server, desired_nodes({"kn-gpu1": variables})).changed == ()
    update_nodes(server, desired_nodes({"kn-gpu1": {"rack": "r"}}))
    found = api.get("/api/v1/nodes/kn-gpu1")

    assert found["metadata"]["labels"].get("example.com/pool") is None
    assert (found["metadata"]["labels"]["nfd"], found["metadata"]["labels"]["theirs"]) == ("yes", "x")
    assert found["spec"].get("taints") is None
    assert update_nodes(server, desired_nodes({"kn-gpu1": {"rack": "r"}})).changed == ()
