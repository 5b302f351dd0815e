"""Select the hosts of a job at submission: leave out hosts that are out of service, and use spares instead. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.bench.placement.host_order import order_hosts
from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.placement.host_order import Speed
    from primus_bootstrap.fleet.service import Service

# The reason comes from a host and is passed to Ansible, which must not read it as a template.
_BRACES = str.maketrans("{}", "()")
_MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class ExcludedHost:
    """A host that the job does not get. With `known=False` it is not in quarantine as far as is known, so a release does not help."""

    host: str
    reason: str
    known: bool = True

    def to_json(self) -> dict[str, str]:
        """Return the entry of job.json."""
        return {"host": self.host, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class HostSelection:
    """The hosts of a job."""

    hosts: tuple[str, ...]  # hosts in service, in order of preference
    spares: tuple[str, ...]  # spares in service, in order of preference
    left_out: tuple[ExcludedHost, ...]  # hosts that are not in service
    replaced: Mapping[str, str]  # the spare that replaces a host
    slow: Mapping[str, str]  # why a host is slow

    def lines(self) -> tuple[str, ...]:
        """Return the messages for the user."""
        replacements = {host: f"spare {spare} takes its place" for host, spare in self.replaced.items()}
        excluded = [f"{entry.host} {entry.reason}; {replacements.get(entry.host, 'it is left out')}" for entry in self.left_out]
        return (*excluded, *(f"{host} is slow and comes last ({reason})" for host, reason in self.slow.items()))


def unavailable_hosts(services: Iterable[Service], *, by_slurm: bool = False) -> dict[str, ExcludedHost]:
    """Return the hosts that are quarantined by any owner, that do not answer, or whose state is unknown.

    Slurm's controllers have a copy of every record, so the quarantine of a silent host is known.

    Args:
        by_slurm: Slurm starts the job. A node that is down in Slurm gets no job, even if the host answers.
    """
    excluded = {}
    for service in services:
        record = service.quarantine
        if record and record.readable:
            excluded[service.host] = ExcludedHost(service.host, _clean(f"is quarantined by {record.owner} ({record.reason})"))
        elif record:
            excluded[service.host] = ExcludedHost(service.host, _clean(f"may be quarantined: {record.reason}"), known=False)
        elif not service.answered:
            excluded[service.host] = ExcludedHost(service.host, _clean(f"does not answer ({service.health_reason})"), known=False)
        elif by_slurm and _down_in_slurm(service):
            why = f": {service.slurm_reason}" if service.slurm_reason else ""
            excluded[service.host] = ExcludedHost(service.host, _clean(f"is {service.slurm} in Slurm{why}"), known=False)
    return excluded


def _down_in_slurm(service: Service) -> bool:
    """Return whether Slurm has lost the node.

    The suffix `*` means that it does not answer: https://slurm.schedmd.com/sinfo.html (NODE STATE CODES).
    """
    return service.slurm.startswith("down") or service.slurm.endswith("*")


def _clean(text: str) -> str:
    return " ".join(text.split())[:_MAX_REASON_CHARS].translate(_BRACES)


def select_hosts(
    hosts: Sequence[str], spares: Sequence[str], *, nodes: int, unavailable: Mapping[str, ExcludedHost], speeds: Mapping[str, Speed]
) -> HostSelection:
    """Select the hosts of a job.

    Args:
        nodes: Number of hosts that the job needs.

    Raises:
        PlanError: Too few hosts are in service.
    """
    available = order_hosts([host for host in hosts if host not in unavailable], speeds)
    available_spares = order_hosts([host for host in spares if host not in unavailable], speeds)
    left_out = tuple(unavailable[host] for host in (*hosts, *spares) if host in unavailable)
    needed_spares = nodes - len(available)
    if needed_spares > len(available_spares):
        raise _too_few(left_out, nodes, len(available) + len(available_spares))
    missing = [host for host in hosts if host in unavailable]
    replaced = dict(zip(missing, available_spares[: max(needed_spares, 0)], strict=False))
    slow = {host: speeds[host].text() for host in (*available, *available_spares) if host in speeds and speeds[host].slow}
    return HostSelection(available, available_spares, left_out, replaced, slow)


def _too_few(left_out: Sequence[ExcludedHost], nodes: int, available: int) -> PlanError:
    reasons = "; ".join(f"{entry.host} {entry.reason}" for entry in left_out)
    known = [entry.host for entry in left_out if entry.known]
    steps = [
        *([f"release healthy hosts (primus-bootstrap node release hosts.yaml {known[0]})"] if known else []),
        *(["start or repair the other hosts (primus-bootstrap node list hosts.yaml)"] if len(known) < len(left_out) else []),
        "request fewer hosts (workload_nodes)",
    ]
    hosts = f"{available} host{'s' if available != 1 else ''}"
    return PlanError(f"workload_nodes is {nodes}, and only {hosts} can be offered: {reasons}", fix=", or ".join(steps))
