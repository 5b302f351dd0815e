"""`kubernetes_provider: existing`: what is refused before anything changes, with the real Ansible and no API server."""

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

# Nobody listens there: a task that asks a host ends in `unreachable`.
NOWHERE = {"ansible_host": "127.0.0.1", "ansible_port": free_port(), "ansible_user": "root"}


def write(folder: Path, **more: str) -> Path:
    """Write a cluster of a control plane, a worker, and a GPU host that is no machine of Kubernetes."""
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
        ("unanswered", "does not answer: [Errno 111] Connection refused. Fix: see that it runs"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused_in_preflight(tmp_path: Path, what: str, says: str) -> None:
    """With the reason and what to do; no host is contacted, and nothing of the play goes on."""
    hosts = write(tmp_path)
    if what != "missing":
        certificates.write(tmp_path, f"https://127.0.0.1:{free_port()}", dt.timedelta(days=-2 if what == "expired" else 1))
    code, said = play(hosts, "preflight/kubernetes.yml")

    assert code == 2
    assert says in said
    assert "Fix:" in said
    assert "unreachable=1" not in said


def test_a_cluster_that_kubespray_makes_need_not_stand_yet(tmp_path: Path) -> None:
    """Its kubeconfig comes with the phase kubernetes, so preflight does not look for one."""
    code, said = play(write(tmp_path, kubernetes_provider="kubespray"), "preflight/kubernetes.yml")

    assert code == 0, said


@pytest.mark.parametrize("words", [("node=gpu1",), ("node=gpu2", "old=gpu1")])
def test_plain_ansible_refuses_machines_of_somebody_else(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The play that add_node.yml, remove_node.yml and replace_node.yml have before any other that touches a host ends them."""
    code, said = play(write(tmp_path), "day2/node/owned.yml", *(word for one in words for word in ("-e", one)))

    assert code == 2
    assert "gpu1: kubernetes_provider is existing, so the machines of this Kubernetes are somebody else's. Fix:" in said


def test_the_refusal_ends_the_removal(tmp_path: Path) -> None:
    """Neither drained nor stopped: no play comes after the refusal."""
    code, said = play(write(tmp_path), "day2/remove_node.yml", "-e", "node=gpu1", "-e", "confirm=demo")

    assert code == 2
    assert re.findall(r"PLAY \[([^]]*)\]", said) == ["Look the host up in hosts.yaml", "See whose machine it is"]


@pytest.mark.parametrize("new", ["gpu1", "gpu9"])
def test_the_verb_replaces_no_machine_of_somebody_else(tmp_path: Path, new: str) -> None:
    """Neither by another one nor by itself, installed anew: exit 3, before a host is asked for its key."""
    path = write(tmp_path)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    tree["all"]["hosts"] = {name: {"ansible_host": f"127.0.0.{number}"} for number, name in enumerate(tree["all"]["hosts"], 2)}
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    done = run_primus("node", "replace", str(path), "gpu1", new, "--host", "127.0.0.9")

    assert done.returncode == 3, done.stderr
    assert "kubernetes_provider is existing" in done.stderr


def test_a_limit_without_localhost_does_not_lift_the_refusal(tmp_path: Path) -> None:
    """`--limit all:!NAME` leaves the plays of localhost out."""
    code, said = play(write(tmp_path), "day2/remove_node.yml", "-e", "node=gpu1", "-e", "confirm=demo", "--limit", "all:!gpu1")

    assert code == 2
    assert re.findall(r"PLAY \[([^]]*)\]", said)[-1] == "See whose machine it is"


@pytest.mark.parametrize(("provider", "host"), [("existing", "gpu2"), ("kubespray", "gpu1")])
def test_other_hosts_may_come_and_go(tmp_path: Path, provider: str, host: str) -> None:
    """A host that is no machine of that cluster, and any of one that Kubespray makes."""
    code, said = play(write(tmp_path, kubernetes_provider=provider), "day2/node/owned.yml", "-e", f"node={host}")

    assert code == 0, said


@pytest.mark.parametrize(("provider", "unreachable"), [("existing", "unreachable=0"), ("kubespray", "unreachable=1")])
def test_backups_and_certificates_of_somebody_else_are_not_judged(tmp_path: Path, provider: str, unreachable: str) -> None:
    """Of a cluster of ours the phase verify asks its hosts for both; of another's none, as `renew` would refuse what it advised."""
    code, said = play(write(tmp_path, kubernetes_provider=provider), "verify/kubernetes.yml", "--tags", "kube_backup,kube_certificates")

    assert (code == 0) == (provider == "existing")
    assert re.findall(r"cp1 : ok=\d+ changed=\d+ (unreachable=\d)", said) == [unreachable]
