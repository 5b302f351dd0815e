"""What Kubespray is told because of a cluster's size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.kubespray_values import chosen_values

if TYPE_CHECKING:
    from pathlib import Path


def told(folder: Path, nodes: int, stated: str = "") -> dict[str, Any]:
    """Return the values for a cluster of so many nodes, by name."""
    workers = "".join(f"        gpu{number}: {{ansible_host: 10.0.0.{number}}}\n" for number in range(2, nodes + 1))
    groups = "    kube_control_plane: {hosts: {cp1: {ansible_host: 10.0.0.1}}}\n    etcd: {hosts: {cp1: }}\n    kube_node:\n      hosts:\n"
    variables = f"  vars: {{cluster_name: large, kube_pods_subnet: 10.128.0.0/16{stated}}}\n"
    (folder / "hosts.yaml").write_text(f"all:\n{variables}  children:\n{groups}{workers}", encoding="utf-8")
    return {value.name: value.value for value in chosen_values(load_cluster(folder), folder)}


@pytest.mark.parametrize(("nodes", "options"), [(100, None), (101, {"percentageOfNodesToScore": 100})])
def test_the_scheduler_of_many_nodes_weighs_them_all(tmp_path: Path, nodes: int, options: Any) -> None:
    """It does so by itself up to a hundred; beyond, a preferred rack would mostly not be among those that it looks at."""
    assert told(tmp_path, nodes).get("kube_scheduler_config_extra_opts") == options


def test_what_is_stated_of_the_scheduler_stays(tmp_path: Path) -> None:
    """Whoever wants speed rather than racks says so."""
    stated = ", kube_scheduler_config_extra_opts: {percentageOfNodesToScore: 20}"

    assert "kube_scheduler_config_extra_opts" not in told(tmp_path, 101, stated)


@pytest.mark.parametrize(
    ("stated", "mode"),
    [
        ("", "Enabled"),
        (", kube_proxy_mode: nftables", "Enabled"),
        (", kube_proxy_mode: ipvs", None),
        (", kube_network_plugin: cilium", None),
    ],
)
def test_calico_goes_with_the_mode_of_kube_proxy(tmp_path: Path, stated: str, mode: str | None) -> None:
    """Only where both are as we choose them, or are stated so."""
    assert told(tmp_path, 3, stated).get("calico_nftable_mode") == mode
