"""Test `kubernetes_provider: existing`: the checks before the first change, with the real Ansible and without an API server."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.command_line import run_primus
from tests.kubernetes import certificates
from tests.unit.engine_rig import free_port
from tests.unit.test_kubernetes_existing import play

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = "Check that the host is not managed by another Kubernetes installer"
# Nothing listens there, so a task that contacts a host ends in `unreachable`.
NOWHERE = {"ansible_host": "127.0.0.1", "ansible_port": free_port(), "ansible_user": "root"}


def write(folder: Path, **more: str) -> Path:
    """Write a cluster with a control plane, a worker, and a GPU host outside of Kubernetes."""
    one, worker = {"hosts": {"cp1": None}}, {"hosts": {"gpu1": None}}
    children = {"kube_control_plane": one, "etcd": one, "kube_node": worker, "gpu_node": {"hosts": {"gpu1": None, "gpu2": None}}}
    children["k8s_cluster"] = {"children": {"kube_control_plane": None, "kube_node": None}}
    variables = {"cluster_name": "demo", "kubernetes_provider": "existing", "kubernetes_kubeconfig": "admin.conf", **more}
    tree = {"all": {"vars": variables, "hosts": dict.fromkeys(("cp1", "gpu1", "gpu2"), NOWHERE), "children": children}}
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing", "no kubeconfig at"),
        ("expired", "the client certificate expired 2.0 days ago"),
        ("unanswered", "does not answer: [Errno 111] Connection refused. Fix: check that it runs"),
    ],
)
def test_unusable_kubeconfig_is_refused_in_preflight(tmp_path: Path, what: str, says: str) -> None:
    """The error has the reason and the fix; no host is contacted."""
    hosts = write(tmp_path)
    if what != "missing":
        certificates.write(tmp_path, f"https://127.0.0.1:{free_port()}", dt.timedelta(days=-2 if what == "expired" else 1))
    code, output = play(hosts, "preflight/kubernetes.yml")

    assert code == 2
    assert says in output
    assert "Fix:" in output
    assert "unreachable=1" not in output


def test_kubespray_cluster_needs_no_kubeconfig(tmp_path: Path) -> None:
    """The phase preflight does not check the kubeconfig that Kubespray creates later."""
    code, output = play(write(tmp_path, kubernetes_provider="kubespray"), "preflight/kubernetes.yml")

    assert code == 0, output


@pytest.mark.parametrize("words", [("node=gpu1",), ("node=gpu2", "old=gpu1")])
def test_plain_ansible_refuses_hosts_of_an_existing_cluster(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The first play of add_node.yml, remove_node.yml and replace_node.yml fails."""
    code, output = play(write(tmp_path), "day2/node/owned.yml", *(word for one in words for word in ("-e", one)))

    assert code == 2
    assert "gpu1: kubernetes_provider is existing, so another installer manages the hosts of this Kubernetes. Fix:" in output


def test_the_refusal_ends_the_removal(tmp_path: Path) -> None:
    """The host is neither drained nor stopped."""
    code, output = play(write(tmp_path), "day2/remove_node.yml", "-e", "node=gpu1", "-e", "confirm=demo")

    assert code == 2
    assert re.findall(r"PLAY \[([^]]*)\]", output) == ["Check that hosts.yaml has the host", MACHINE]


@pytest.mark.parametrize("new", ["gpu1", "gpu9"])
def test_verb_does_not_replace_a_host_of_an_existing_cluster(tmp_path: Path, new: str) -> None:
    """The exit code is 3, and no host is contacted."""
    path = write(tmp_path)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    tree["all"]["hosts"] = {name: {"ansible_host": f"127.0.0.{number}"} for number, name in enumerate(tree["all"]["hosts"], 2)}
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    done = run_primus("node", "replace", str(path), "gpu1", new, "--host", "127.0.0.9")

    assert done.returncode == 3, done.stderr
    assert "kubernetes_provider is existing" in done.stderr


def test_limit_without_localhost_is_refused_too(tmp_path: Path) -> None:
    """`--limit all:!NAME` excludes the plays of localhost."""
    code, output = play(write(tmp_path), "day2/remove_node.yml", "-e", "node=gpu1", "-e", "confirm=demo", "--limit", "all:!gpu1")

    assert code == 2
    assert re.findall(r"PLAY \[([^]]*)\]", output)[-1] == MACHINE


@pytest.mark.parametrize(("provider", "host"), [("existing", "gpu2"), ("kubespray", "gpu1")])
def test_other_hosts_can_be_added_and_removed(tmp_path: Path, provider: str, host: str) -> None:
    """Hosts outside of the existing cluster, and hosts of a Kubespray cluster, are accepted."""
    code, output = play(write(tmp_path, kubernetes_provider=provider), "day2/node/owned.yml", "-e", f"node={host}")

    assert code == 0, output


@pytest.mark.parametrize(("provider", "unreachable"), [("existing", "unreachable=0"), ("kubespray", "unreachable=1")])
def test_backups_and_certificates_of_an_existing_cluster_are_not_checked(tmp_path: Path, provider: str, unreachable: str) -> None:
    """The phase verify checks both only for a Kubespray cluster."""
    code, output = play(write(tmp_path, kubernetes_provider=provider), "verify/kubernetes.yml", "--tags", "kube_backup,kube_certificates")

    assert (code == 0) == (provider == "existing")
    assert re.findall(r"cp1 : ok=\d+ changed=\d+ (unreachable=\d)", output) == [unreachable]
