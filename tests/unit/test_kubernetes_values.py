"""What Kubespray is told of drains: one setting of ours for both, and Kubespray's own where hosts.yaml has it."""

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


def told(folder: Path, *, every: str = "", workers: str = "") -> dict[str, object]:
    """Return what is handed over about drains."""
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
def test_an_upgrade_drains_by_our_setting(tmp_path: Path, every: str, workers: str, timeout: str, grace: int) -> None:
    """The time is handed on; a pod's own share ends before it, neither is ever 0, and of two values the longer counts."""
    assert told(tmp_path, every=every, workers=workers) == {"drain_timeout": timeout, "drain_grace_period": grace}


@pytest.mark.parametrize("own", ["drain_timeout: 900s", "drain_grace_period: 30"])
def test_kubesprays_own_settings_win(tmp_path: Path, own: str) -> None:
    """The two belong together, so with one of them stated neither is handed over."""
    assert told(tmp_path, every=f"kube_drain_evict_s: 1800, {own}") == {}
