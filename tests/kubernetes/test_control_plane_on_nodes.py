"""Test day-2 verbs on a control plane of real static pods: renewing certificates and restoring etcd."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.kubeadm_cluster import wait_for
from tests.kubernetes.training_rig import Nodes
from tests.lab.lab_rig import run_cli

if TYPE_CHECKING:
    import subprocess

    from tests.kubernetes.kubeadm_cluster import Cluster

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1200)]
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


@pytest.fixture(scope="module")
def nodes(kubeadm_cluster: Cluster) -> Nodes:
    """A cluster with SSH access for Ansible."""
    found = Nodes(kubeadm_cluster, kubeadm_cluster.folder / "site")
    found.reach()
    return found


def verb(nodes: Nodes, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a day-2 verb on the cluster, which must succeed."""
    done = run_cli(*words[:2], str(nodes.hosts_file), *words[2:], timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def pids(nodes: Nodes) -> dict[str, str]:
    """Return the process IDs of the control plane's programs."""
    return {name: nodes.cluster.run_on(nodes.service, "pgrep", "--exact", name[:15], check=False).stdout.strip() for name in PROGRAMS}


def serial(nodes: Nodes) -> str:
    """Return the serial number of the API server's certificate."""
    return ssl.get_server_certificate((str(nodes.cluster.address(nodes.service)), 6443), timeout=10)


def well(nodes: Nodes) -> bool:
    """Return whether every Node is Ready and the scheduler works."""
    return all(nodes.cluster.ready().values()) and nodes.cluster.kubectl("get", "--raw=/readyz") == "ok"


def test_certificates_are_renewed(nodes: Nodes) -> None:
    """Every program of the control plane restarts with the new certificate; Nodes stay Ready, and the next run changes nothing."""
    before, shown = pids(nodes), serial(nodes)
    verb(nodes, "renew", "certificates", "--yes", "--now")
    # A former API server answers what it was asked before it goes.
    wait_for(lambda: not set(before.values()) & set(" ".join(pids(nodes).values()).split()), "a former process stays")
    after = pids(nodes)

    assert all(after.values()), after
    assert serial(nodes) != shown
    wait_for(lambda: well(nodes), "the cluster is not well")
    verb(nodes, "renew", "certificates", "--yes")
    assert pids(nodes) == after


def test_etcd_is_restored(nodes: Nodes) -> None:
    """Objects of the backup exist again, later ones do not; kubelets and controllers continue."""
    nodes.cluster.kubectl("create", "configmap", "kept")
    verb(nodes, "backup", "etcd")
    nodes.cluster.kubectl("delete", "configmap", "kept")
    nodes.cluster.kubectl("create", "configmap", "lost")
    verb(nodes, "restore", "etcd", "--confirm", "nodes")
    names = nodes.cluster.kubectl("get", "configmaps", "--output=name").split()
    wait_for(lambda: well(nodes), "the cluster is not well")
    name = f"after-{int(time.time())}"
    nodes.cluster.kubectl("create", "deployment", name, "--image=localhost/busybox:1", "--", "sleep", "3600")
    rolled = nodes.cluster.kubectl("rollout", "status", f"deployment/{name}", "--timeout=240s", check=False)
    nodes.cluster.kubectl("delete", "deployment", name)
    nodes.cluster.kubectl("delete", "configmap", "kept")

    assert "configmap/kept" in names
    assert "configmap/lost" not in names
    assert "successfully rolled out" in rolled
