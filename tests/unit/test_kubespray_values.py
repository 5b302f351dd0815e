"""Test Kubespray's variables that depend on the number of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.kubespray_values import chosen_values

if TYPE_CHECKING:
    from pathlib import Path


def values_by_name(folder: Path, nodes: int, stated: str = "") -> dict[str, Any]:
    """Return the values for a cluster with so many nodes, by name."""
    workers = "".join(f"        gpu{number}: {{ansible_host: 10.0.0.{number}}}\n" for number in range(2, nodes + 1))
    groups = "    kube_control_plane: {hosts: {cp1: {ansible_host: 10.0.0.1}}}\n    etcd: {hosts: {cp1: }}\n    kube_node:\n      hosts:\n"
    variables = f"  vars: {{cluster_name: large, kube_pods_subnet: 10.128.0.0/16{stated}}}\n"
    (folder / "hosts.yaml").write_text(f"all:\n{variables}  children:\n{groups}{workers}", encoding="utf-8")
    return {value.name: value.value for value in chosen_values(load_cluster(folder), folder)}


@pytest.mark.parametrize(("nodes", "options"), [(100, None), (101, {"percentageOfNodesToScore": 100})])
def test_scheduler_scores_all_nodes_of_a_large_cluster(tmp_path: Path, nodes: int, options: Any) -> None:
    """Above 100 nodes the scheduler's default is a sample, so the value is set."""
    assert values_by_name(tmp_path, nodes).get("kube_scheduler_config_extra_opts") == options


def test_scheduler_options_of_hosts_yaml_stay(tmp_path: Path) -> None:
    """Options of the scheduler in hosts.yaml are not replaced."""
    stated = ", kube_scheduler_config_extra_opts: {percentageOfNodesToScore: 20}"

    assert "kube_scheduler_config_extra_opts" not in values_by_name(tmp_path, 101, stated)


@pytest.mark.parametrize(
    ("stated", "mode"),
    [
        ("", "Enabled"),
        (", kube_proxy_mode: nftables", "Enabled"),
        (", kube_proxy_mode: ipvs", None),
        (", kube_network_plugin: cilium", None),
    ],
)
def test_calico_mode_follows_kube_proxy(tmp_path: Path, stated: str, mode: str | None) -> None:
    """The mode nftables is set only if kube-proxy and the network plugin have their default or the same value."""
    assert values_by_name(tmp_path, 3, stated).get("calico_nftable_mode") == mode


def test_certificates_of_another_authority_are_not_renewed(tmp_path: Path) -> None:
    """Kubespray refuses to renew certificates if an authority outside the cluster issues them. Its check has no default."""
    assert values_by_name(tmp_path, 2)["auto_renew_certificates"] is True
    assert values_by_name(tmp_path, 2, ", kube_external_ca_mode: true")["auto_renew_certificates"] is False
