"""Select the hosts of a job at submission: leave out hosts that are out of service, and put slow hosts last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.bench.placement.host_order import host_speeds, newest_values
from primus_bootstrap.bench.placement.host_selection import HostSelection, select_hosts, unavailable_hosts
from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.results.store import BenchStore
from primus_bootstrap.cli.console import say
from primus_bootstrap.cli.service_states import read_service_states
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.inventory.job_file import inventory_facts
from primus_bootstrap.launch.watch.job_request import candidate_hosts, target_of
from primus_bootstrap.launch.watch.job_spec import DIRECT, KUBERNETES, SLURM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from primus_bootstrap.bench.placement.host_order import Speed
    from primus_bootstrap.bench.report.bench_report import BenchRun
    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.launch.watch.job_request import JobRequest

# Older benches say little about the current hosts, and each report is a file of some MiB.
_MAX_RUNS = 10


def hosts_for_job(cluster: Cluster, request: JobRequest, *, timeout_s: float) -> HostSelection:
    """Ask the candidate hosts and Slurm's controllers which hosts are in service, and select the hosts of a job.

    Raises:
        PlanError: Too few hosts are in service.
    """
    facts = inventory_facts(cluster)
    hosts, spares = candidate_hosts(request, facts)
    target = target_of(request, facts)
    if not hosts and target == KUBERNETES:
        return HostSelection((), (), (), {}, {})  # the inventory does not contain the nodes of this cluster
    states = read_service_states(cluster, [*hosts, *spares], timeout_s=timeout_s)
    unavailable = unavailable_hosts(states, by_slurm=target == SLURM)
    named = {*request.hosts, *request.spares}
    # Slurm and Kubernetes have an order of their own, and so have hosts that the job names.
    sortable = [host for host in (*hosts, *spares) if host not in unavailable and host not in named and target == DIRECT]
    speeds = _speeds(cluster, sortable) if sortable else {}
    return select_hosts(hosts, spares, nodes=request.nodes, unavailable=unavailable, speeds=speeds)


def _speeds(cluster: Cluster, hosts: Sequence[str]) -> dict[str, Speed]:
    speeds = host_speeds(newest_values(_runs(cluster.state_dir / "bench"), hosts))
    return {host: speeds[host] for host in hosts if host in speeds}


def _runs(folder: Path) -> Iterator[BenchRun]:
    """Yield the newest benches; one that cannot be read is reported and skipped."""
    for report in BenchStore(folder).reports()[:_MAX_RUNS]:
        try:
            yield read_run(report / "bench.json")
        except RunError as error:
            say(f"{error.what}; the order of the hosts ignores this bench")
