"""Test that a Node counts as ready after a restart of containerd only when its kubelet reports again."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kubernetes.fake_nodes import register_nodes
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api

NODE = "rt-gpu1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def now() -> dict[str, Any]:
    """Return the current time in the format of a lease."""
    return {"spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}


@pytest.fixture
def node(api: Api) -> Iterator[str]:
    """A Node with a lease."""
    register_nodes(api, {NODE: {}})
    api.create(LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NODE}, **now()})
    yield NODE
    api.delete(f"{LEASES}/{NODE}")
    api.delete(f"/api/v1/nodes/{NODE}")


def wait_for_it(folder: Path, server: ApiServer, seconds: int) -> tuple[int, str]:
    """Run the role's tasks with plain Ansible; return the exit code and the output."""
    told = {"registry_trust_kubeconfig": str(server.kubeconfig), "registry_trust_node": NODE, "registry_trust_ready_timeout_s": seconds}
    task = {"name": "Wait", "ansible.builtin.include_role": {"name": "registry_trust", "tasks_from": "containerd_ready"}}
    play = {"name": "Wait", "hosts": "all", "gather_facts": False, "vars": told, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    (folder / "hosts.yaml").write_text(f"all: {{hosts: {{{NODE}: {{ansible_connection: local}}}}}}\n", encoding="utf-8")
    done = run_playbook(folder / "hosts.yaml", folder / "play.yml")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("renews", "ready", "status"), [(True, "True", 0), (False, "True", 2), (True, "False", 2)], ids=["back", "silent", "not ready"]
)
def test_node_is_ready_after_a_new_report(
    api: Api, api_server: ApiServer, node: str, tmp_path: Path, *, renews: bool, ready: str, status: int
) -> None:
    """A silent kubelet, or one that reports NotReady, stops the rollout with the Node's name and a fix."""
    condition = {"type": "Ready", "status": ready, "reason": "Test", "lastHeartbeatTime": now()["spec"]["renewTime"][:19] + "Z"}
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}})
    over = threading.Event()

    def renew() -> None:
        while not over.wait(1):
            api.patch(f"{LEASES}/{node}", now())

    kubelet = threading.Thread(target=renew)
    if renews:
        kubelet.start()
    try:
        got, output = wait_for_it(tmp_path, api_server, 5 if status else 60)
    finally:
        over.set()
        if renews:
            kubelet.join()

    assert got == status, output
    assert (f"Node {node} was not Ready within 5 s" in " ".join(output.split())) == bool(status)
