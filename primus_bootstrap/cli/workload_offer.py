"""What a job is offered when it is submitted: who is in service by the hosts' own word, in the order that the last benches give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.placement.host_order import newest_values, speeds
from primus_bootstrap.bench.placement.host_selection import Offer, make_offer, out_of_service
from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.results.run_store import newest_runs
from primus_bootstrap.cli.console import say
from primus_bootstrap.cli.fleet_verbs import ask_hosts, targets_of_limit
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.engine.hostkeys import known_hosts_path
from primus_bootstrap.fleet.service import read_services, service_task
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.job_file import ROLE
from primus_bootstrap.launch.watch.job_spec import DIRECT, KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.bench.report.bench_report import BenchRun
    from primus_bootstrap.fleet.service import Service
    from primus_bootstrap.inventory.cluster import Cluster

# Older benches say little of hosts as they are now, and each is a file of some MiB.
_MOST_RUNS = 10


def offer_of(cluster: Cluster, job: Mapping[str, Any], *, timeout_s: float) -> Offer:
    """Ask the hosts that a job may get, and Slurm's controllers, and return what the job is offered; `job` is one that can be.

    Raises:
        PlanError: too few hosts are in service.
    """
    hostvars = {host: cluster.view.variables(host) for group in ("workload_node", "kube_node") for host in cluster.groups.get(group, ())}
    role = load_filters(ROLE)
    # Ansible's names carry their origin, and no YAML writer takes them.
    hosts, spares = ([str(host) for host in each] for each in role.candidates(job, cluster.groups, hostvars))
    if not hosts and role.target(job, cluster.groups) == KUBERNETES:
        return Offer((), (), (), {}, {})  # a cluster whose hosts the inventory does not know
    out = out_of_service(_services(cluster, [*hosts, *spares], timeout_s))
    # Slurm has an order of its own, and so have hosts that the job names.
    stated = {*job["workload_hosts"], *job["workload_spares"]}
    free = [host for host in (*hosts, *spares) if host not in out and host not in stated and role.target(job, cluster.groups) == DIRECT]
    known = speeds(newest_values(_runs(cluster.state_dir / "bench"), free)) if free else {}
    return make_offer(hosts, spares, nodes=job["workload_nodes"], out=out, known={host: known[host] for host in free if host in known})


def _services(cluster: Cluster, hosts: Sequence[str], timeout_s: float) -> tuple[Service, ...]:
    asked = dict.fromkeys([*hosts, *cluster.groups.get("slurm_controller", ())])
    targets = targets_of_limit(cluster, ",".join(asked))
    answers = ask_hosts(cluster, targets, service_task(targets, known_hosts=known_hosts_path(cluster), timeout_s=timeout_s))
    return read_services(answers, hosts)


def _runs(folder: Path) -> Iterator[BenchRun]:
    """Yield the last benches, newest first; one that cannot be read is said and passed over."""
    for own in newest_runs(folder)[:_MOST_RUNS]:
        try:
            yield read_run(own / "bench.json")
        except RunError as error:
            say(f"{error.what}; what it measured does not order the hosts")
