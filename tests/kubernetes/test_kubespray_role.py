"""Test the role kubespray with an existing cluster on a real API server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.playbooks import run_playbook

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


def test_verification_reports_its_results(api_server: ApiServer, api: Api, tmp_path: Path) -> None:
    """Etcd and certificates pass, a missing Node fails, and a pod without a kubelet is unknown and removed."""
    done = play(tmp_path, api_server.kubeconfig, "verify/kubernetes.yml", "--tags", "kubespray", "-e", "kubespray_verify_wait_s=3")

    [text] = re.findall(r'"msg": ("\{\\"verdicts.*")$', done.stdout, re.MULTILINE)
    found = {(one["check"], one["host"]): one["verdict"] for one in json.loads(json.loads(text))["verdicts"]}
    assert done.returncode != 0
    assert found["kubernetes.node", "n1"] == "fail"
    assert found["kubernetes.etcd", "kubernetes"] == "pass"
    assert found["kubernetes.certificate.administrator", "kubernetes"] in ("pass", "fail")
    assert found["kubernetes.certificate.api", "kubernetes"] in ("pass", "fail")
    assert found["kubernetes.pod", "kubernetes"] == "unknown"
    left = [pod["metadata"]["name"] for pod in api.items("/api/v1/namespaces/default/pods")]
    assert [name for name in left if name.startswith("primus-verify-")] == []
