"""Test the role kubespray with an existing cluster on a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.playbooks import run_playbook
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.kubernetes.api_server import ApiServer
    from tests.kubernetes.rest import Api


def play(folder: Path, kubeconfig: Path, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook for an inventory of an existing cluster."""
    folder.joinpath("hosts.yaml").write_text(
        f"all:\n  vars: {{kubernetes_provider: existing, kubernetes_kubeconfig: {kubeconfig}}}\n"
        "  children:\n    kube_control_plane: {hosts: {cp1: }}\n    kube_node: {hosts: {n1: }}\n",
        encoding="utf-8",
    )
    return run_playbook(folder / "hosts.yaml", playbook, *arguments)


def test_existing_cluster_is_only_checked(api_server: ApiServer, tmp_path: Path) -> None:
    """Nothing is downloaded or changed, and unreachable hosts do not matter."""
    done = play(tmp_path, api_server.kubeconfig, "kubernetes/cluster.yml")

    assert done.returncode == 0, done.stdout
    assert "changed=0" in done.stdout
    assert not (tmp_path / ".primus").exists()


def test_rejected_kubeconfig_is_refused(api_server: ApiServer, tmp_path: Path) -> None:
    """A kubeconfig of another cluster, or an expired one, fails before the first chart."""
    text = api_server.kubeconfig.read_text(encoding="utf-8")
    other = tmp_path / "other.conf"
    other.write_text(
        "\n".join(line for line in text.splitlines() if "certificate-data" not in line and "client-key" not in line), encoding="utf-8"
    )

    done = play(tmp_path, other, "kubernetes/cluster.yml")

    assert done.returncode != 0
    assert "The Kubernetes API does not answer" in done.stdout
    assert "Fix: get a valid kubeconfig from the provider" in done.stdout


def test_reset_keeps_kubernetes_on_the_hosts(api_server: ApiServer, tmp_path: Path) -> None:
    """A reset does not remove Kubernetes."""
    done = play(tmp_path, api_server.kubeconfig, "day2/reset/kubernetes.yml", "--tags", "kubespray")

    assert done.returncode == 0, done.stdout
    assert "changed=0" in done.stdout


@pytest.mark.filterwarnings("ignore:HTTPResponse.getheaders:DeprecationWarning")  # the client's own, about its urllib3
def test_verification_reports_its_results(api_server: ApiServer, api: Api) -> None:
    """Etcd and certificates pass, a missing Node fails, and a pod without a kubelet is unknown and removed."""
    client = pytest.importorskip("kubernetes.client", reason="the package kubernetes is not installed")
    config = pytest.importorskip("kubernetes.config")
    effects: Any = load_role_module("kubespray", "kubespray_effects")
    wanted = {"kubeconfig": str(api_server.kubeconfig), "image": "busybox", "wait_s": 3, "nodes": {"nobody": "nobody.site"}, "version": ""}

    found = {record["check"]: record for record in effects.check_cluster(client, config, wanted)}

    assert (found["kubernetes.node"]["verdict"], found["kubernetes.node"]["host"]) == ("fail", "nobody")
    assert found["kubernetes.etcd"]["verdict"] == "pass"
    assert found["kubernetes.certificate.api"]["verdict"] in ("pass", "fail")
    assert found["kubernetes.pod"]["verdict"] == "unknown"
    left = [pod["metadata"]["name"] for pod in api.items("/api/v1/namespaces/default/pods")]
    assert [name for name in left if name.startswith("primus-verify-")] == []
