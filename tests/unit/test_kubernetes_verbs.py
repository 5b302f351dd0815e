"""Test the hosts of `backup`, `restore`, `renew` and `upgrade`, and the checks before a host is contacted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.plan import TargetHost, make_plan
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.day2 import check_upgrade_step, last_versions, refuse_foreign_machine

if TYPE_CHECKING:
    from pathlib import Path

MI300X = content.topologies_dir() / "mi300x/hosts.yaml"
NEWEST = load_release().newest
MINOR = int(NEWEST.split(".")[1])
CONTROL_PLANES = ("cp1", "cp2", "cp3")


def write(folder: Path, **more: str) -> Path:
    """Write a hosts.yaml with one control plane and one worker."""
    hosts = {"cp1": {"ansible_host": "10.0.0.1"}, "gpu1": {"ansible_host": "10.0.0.2"}}
    one = {"hosts": {"cp1": None}}
    children = {"kube_control_plane": one, "etcd": one, "kube_node": {"hosts": {"gpu1": None}}, "gpu_node": {"hosts": {"gpu1": None}}}
    children["k8s_cluster"] = {"children": {"kube_control_plane": None, "kube_node": None}}
    tree = {"all": {"vars": {"cluster_name": "demo", "ansible_user": "root", **more}, "hosts": hosts, "children": children}}
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


@pytest.mark.parametrize("playbook", ["backup_etcd", "restore_etcd"])
def test_etcd_verbs_use_etcd_members_and_control_planes(playbook: str) -> None:
    """No worker is contacted."""
    assert make_plan(load_cluster(MI300X), playbook=f"day2/{playbook}.yml").hosts == CONTROL_PLANES


def test_certificates_are_renewed_one_control_plane_at_a_time() -> None:
    """The play has `serial: 1`, and the certificates of all nodes are read."""
    plays = yaml.safe_load((content.playbooks_dir() / "day2/renew_certificates.yml").read_text(encoding="utf-8"))
    renewing = next(play for play in plays if play.get("roles") == ["kube_certificates"])

    assert (renewing["hosts"], renewing["serial"], renewing["any_errors_fatal"]) == ("kube_control_plane", 1, True)
    assert len(make_plan(load_cluster(MI300X), playbook="day2/renew_certificates.yml").hosts) == 70


@pytest.mark.parametrize(
    ("last", "stated", "wanted", "says"),
    [
        (f"1.{MINOR - 1}.1", NEWEST, NEWEST, ""),
        ("", NEWEST, NEWEST, ""),
        (f"1.{MINOR - 2}.1", NEWEST, NEWEST, "skips a minor version"),
        ("", NEWEST, "1.20.2", "installs"),
        (f"1.{MINOR - 1}.1", "", NEWEST, "kube_version in hosts.yaml is not set"),
    ],
)
def test_unsupported_upgrade_step_is_refused(tmp_path: Path, last: str, stated: str, wanted: str, says: str) -> None:
    """Two minor versions, an unsupported version, or a version other than kube_version is refused."""
    cluster = load_cluster(write(tmp_path, **({"kube_version": stated} if stated else {})))
    if last:
        folder = cluster.state_dir / "kubespray"
        folder.mkdir(parents=True)
        (folder / "done.json").write_text(json.dumps({"version": last}), encoding="utf-8")
    output = ""
    try:
        check_upgrade_step(cluster, wanted)
    except PlanError as error:
        output = f"{error.what} / {error.fix}"

    assert last_versions(cluster) == ((last,) if last else ())
    assert bool(output) == bool(says)
    assert says in output


def test_node_leaves_kubernetes_before_it_is_stopped() -> None:
    """The phase is between drain and stop, and concerns the node and the first etcd member."""
    plan = make_plan(load_cluster(MI300X), playbook="day2/remove_node.yml", target=TargetHost("gpu007"))
    steps = {step.phase: step.hosts for step in plan.steps}

    assert steps["kubernetes"] == ("cp1", "gpu007")
    assert list(steps).index("kubernetes") < len(steps)


def test_hosts_of_an_existing_cluster_are_not_changed(tmp_path: Path) -> None:
    """Hosts outside of the groups of Kubernetes can be added and removed."""
    cluster = load_cluster(write(tmp_path, kubernetes_provider="existing", kubernetes_kubeconfig="admin.conf"))

    refuse_foreign_machine(cluster, ("gpu_node", "slurm_node"), "node add")
    with pytest.raises(PlanError, match="node remove: kubernetes_provider is existing"):
        refuse_foreign_machine(cluster, ("gpu_node", "kube_node"), "node remove")
