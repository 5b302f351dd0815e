"""Test the drain settings of Kubespray: derived from kube_drain_evict_s unless hosts.yaml sets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.kubespray_values import chosen_values
from tests.unit.inventory_rig import write_inventory

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = """\
all:
  children:
    kube_control_plane: {{hosts: {{cp1: }}}}
    etcd: {{hosts: {{cp1: }}}}
    kube_node: {{hosts: {{gpu1: , gpu2: }}, vars: {{{workers}}}}}
    k8s_cluster: {{children: {{kube_control_plane: , kube_node: }}, vars: {{{every}}}}}
"""


def drain_values(folder: Path, *, every: str = "", workers: str = "") -> dict[str, object]:
    """Return the generated drain settings."""
    cluster = load_cluster(write_inventory(folder, HOSTS.format(every=every, workers=workers)))
    return {value.name: value.value for value in chosen_values(cluster, folder) if value.name.startswith("drain_")}


@pytest.mark.parametrize(
    ("every", "workers", "timeout", "grace"),
    [
        ("", "", "600s", 540),
        ("kube_drain_evict_s: 1800", "", "1800s", 1740),
        ("kube_drain_evict_s: 100", "", "100s", 50),
        ("kube_drain_evict_s: 0", "", "60s", 30),
        ("kube_drain_evict_s: 300", "kube_drain_evict_s: 900", "900s", 840),
        ("", "kube_drain_evict_s: 900", "900s", 840),
    ],
)
def test_drain_settings_follow_kube_drain_evict_s(tmp_path: Path, every: str, workers: str, timeout: str, grace: int) -> None:
    """The time-out is the larger value of the hosts; the grace period is shorter, and neither is 0."""
    assert drain_values(tmp_path, every=every, workers=workers) == {"drain_timeout": timeout, "drain_grace_period": grace}


@pytest.mark.parametrize("own", ["drain_timeout: 900s", "drain_grace_period: 30"])
def test_settings_in_hosts_yaml_override(tmp_path: Path, own: str) -> None:
    """If hosts.yaml sets one of the two settings, neither is generated."""
    assert drain_values(tmp_path, every=f"kube_drain_evict_s: 1800, {own}") == {}
