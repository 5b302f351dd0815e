"""Test the checks of `backup`, `restore`, `renew` and `upgrade` before a host is contacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.rules.day2_nodes import check_leaving
from primus_bootstrap.kubernetes.day2 import refuse_partial_reset
from tests.command_line import run_primus
from tests.playbooks import run_playbook
from tests.unit.test_kubernetes_verbs import MI300X, NEWEST, write

if TYPE_CHECKING:
    from pathlib import Path

LAB = content.topologies_dir() / "lab/hosts.yaml"


def test_cluster_without_kubernetes_is_refused(tmp_path: Path) -> None:
    """The error names the groups of Kubernetes."""
    done = run_primus("backup", "etcd", str(LAB))

    assert done.returncode == 3
    assert "kube_control_plane" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("backup", "etcd"), ("restore", "etcd"), ("renew", "certificates"), ("upgrade", "kubernetes")])
def test_existing_cluster_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """With kubernetes_provider existing the exit code is 3, and no host is contacted."""
    path = write(tmp_path, kubernetes_provider="existing", kubernetes_kubeconfig="admin.conf")
    done = run_primus(
        *words, str(path), *([NEWEST] if words[0] == "upgrade" else []), *(["--confirm", "demo"] if words[0] == "restore" else [])
    )

    assert done.returncode == 3, done.stderr
    assert "kubernetes_provider is existing" in done.stderr


def test_plain_ansible_refuses_an_existing_cluster(tmp_path: Path) -> None:
    """The first play of each playbook fails and contacts no host."""
    path = write(tmp_path, kubernetes_provider="existing", kubernetes_kubeconfig="admin.conf")
    done = run_playbook(path, "day2/backup_etcd.yml")

    assert done.returncode == 2
    assert "primus-bootstrap does not manage the machines of this cluster" in " ".join(done.stdout.split())


def test_restore_needs_the_name_of_the_cluster(tmp_path: Path) -> None:
    """With another name, the exit code is 2; without one and a terminal, it is 3."""
    path = str(write(tmp_path))
    done = [run_primus("restore", "etcd", path, "--confirm", "prod"), run_primus("restore", "etcd", path)]

    assert [one.returncode for one in done] == [2, 3]
    assert "--confirm demo" in done[0].stderr
    assert "--confirm demo" in done[1].stderr


def test_etcd_member_must_be_removed_by_kubespray() -> None:
    """The verb and plain Ansible refuse to remove a host that hosts.yaml has removed from etcd."""
    with pytest.raises(PlanError) as caught:
        check_leaving(load_cluster(MI300X), "cp3")
    done = run_playbook(MI300X, "day2/remove_node.yml", "-e", "node=cp3", "-e", f"confirm={load_cluster(MI300X).name}")

    command = "playbooks/day2/node/kubernetes.yml -e node=cp3 (docs/kubernetes-day2.md), then"
    assert f"{command} delete cp3 from" in caught.value.fix
    assert command in " ".join(done.stdout.split())
    assert "etcd must keep an odd number of members" in done.stdout
    assert done.returncode == 2


def test_partial_reset_is_refused(tmp_path: Path) -> None:
    """Kubespray resets all hosts, so the verb and the playbook refuse a --limit."""
    path = write(tmp_path)
    cluster = load_cluster(path)
    refuse_partial_reset(cluster, ("cp1", "gpu1"))
    refuse_partial_reset(cluster, ())
    with pytest.raises(PlanError, match="1 of 2 hosts of Kubernetes are excluded"):
        refuse_partial_reset(cluster, ("gpu1",))
    refuse_partial_reset(load_cluster(write(tmp_path, kubernetes_provider="existing", kubernetes_kubeconfig="x")), ("gpu1",))
    path = write(tmp_path)
    done = run_playbook(path, "day2/reset.yml", "-e", "confirm=demo", "--limit", "gpu1")

    assert done.returncode == 2
    assert "`primus-bootstrap node remove gpu1` removes one host" in " ".join(done.stdout.split())
    assert "Wipe it" not in done.stdout
