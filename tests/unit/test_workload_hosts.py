"""primus_bootstrap.cli.workload_hosts: which hosts a submission offers to a job, by its target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bench.placement.host_order import Speed
from primus_bootstrap.cli import workload_hosts
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.fleet.service import Service
from primus_bootstrap.launch.watch.job_request import InventoryFacts

if TYPE_CHECKING:
    from primus_bootstrap.bench.placement.host_selection import HostSelection

GROUPS = {"slurm_controller": ["ctl"], "slurm_node": ["n1", "n2"], "workload_node": ["n1", "n2"], "kube_node": ["n1", "n2"]}
SLOW = {"n1": Speed(0.5, "gemm", "0")}


def select(monkeypatch: pytest.MonkeyPatch, target: str, *, groups: dict[str, list[str]] = GROUPS, **changes: Any) -> HostSelection:
    """Select the hosts of a job for one host; n1 is the slow one, and n2 is down in Slurm."""
    services = (Service("n1", answered=True, slurm="idle"), Service("n2", answered=True, slurm="down*"))
    monkeypatch.setattr(workload_hosts, "inventory_facts", lambda _cluster: InventoryFacts(groups, {}))
    monkeypatch.setattr(workload_hosts, "read_service_states", lambda _cluster, _hosts, timeout_s: services[: int(timeout_s)])
    monkeypatch.setattr(workload_hosts, "_speeds", lambda _cluster, hosts: {host: SLOW[host] for host in hosts if host in SLOW})
    values = {"target": target, "nodes": 1, "gpus_per_node": 0, "hosts": (), "spares": (), "host_order": (), "slurm_partition": ""}
    request: Any = SimpleNamespace(**{**values, **changes})
    cluster: Any = object()
    return workload_hosts.hosts_for_job(cluster, request, timeout_s=2)


def test_slurms_own_states_count_for_its_jobs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is down in Slurm can still run a job over SSH."""
    by_slurm = select(monkeypatch, "slurm")
    direct = select(monkeypatch, "direct")

    assert by_slurm.hosts == ("n1",)
    assert [entry.host for entry in by_slurm.left_out] == ["n2"]
    assert direct.hosts == ("n2", "n1")


def test_slow_hosts_are_moved_only_where_the_job_has_no_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm and Kubernetes choose by themselves, and named hosts are in the order in which they are named."""
    assert select(monkeypatch, "slurm").slow == {}
    assert select(monkeypatch, "kubernetes").hosts == ("n1", "n2")
    assert select(monkeypatch, "direct", hosts=("n1", "n2")).hosts == ("n1", "n2")
    assert set(select(monkeypatch, "direct").slow) == {"n1"}


def test_a_kubernetes_cluster_without_nodes_in_the_inventory_chooses_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes are unknown here, which is no reason to refuse a job; for Slurm it is one."""
    nobody: dict[str, list[str]] = {}

    assert select(monkeypatch, "kubernetes", groups=nobody).hosts == ()
    with pytest.raises(PlanError):
        select(monkeypatch, "slurm", groups=nobody)
