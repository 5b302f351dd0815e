"""Which hosts a job is offered when it is submitted: without those that are out of service, spares in their place. Pure functions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.placement.host_order import in_order
from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.placement.host_order import Speed
    from primus_bootstrap.fleet.service import Service


# What a host says of itself goes on to Ansible, and is no template there.
_BRACES = str.maketrans("{}", "()")
_SAID_CHARS = 200


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A host that a job is not offered, and why; `known` is False where nobody can tell whether it is in service."""

    host: str
    reason: str
    known: bool = True

    def to_json(self) -> dict[str, str]:
        """Return it as job.json has it."""
        return {"host": self.host, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Offer:
    """`hosts` and `spares` are in service, in the order in which they are offered; `replaced` maps a host to the spare in its place."""

    hosts: tuple[str, ...]
    spares: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    replaced: Mapping[str, str]
    slow: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)

    def lines(self) -> tuple[str, ...]:
        """Return what people have to know of it."""
        instead = {host: f"spare {spare} takes its place" for host, spare in self.replaced.items()}
        told = [f"{one.host} {one.reason}; {instead.get(one.host, 'it is left out')}" for one in self.left_out]
        return (*told, *(f"{host} is slow and comes last ({why})" for host, why in self.slow.items()))


def out_of_service(services: Iterable[Service]) -> dict[str, LeftOut]:
    """Return the hosts that a job must not be offered: quarantined by anybody, or nobody can tell.

    Slurm's controllers keep a copy of every record: where one answers that has the host, a silent host's quarantine is known.
    """
    found = {}
    for one in services:
        kept = one.quarantine
        if kept and kept.readable:
            found[one.host] = LeftOut(one.host, _said(f"is quarantined by {kept.owner} ({kept.reason})"))
        elif kept:
            found[one.host] = LeftOut(one.host, _said(f"may be quarantined: {kept.reason}"), known=False)
        elif not one.answered and not one.slurm:
            found[one.host] = LeftOut(one.host, _said(f"may be quarantined: it does not answer ({one.health_reason})"), known=False)
    return found


def _said(text: str) -> str:
    return " ".join(text.split())[:_SAID_CHARS].translate(_BRACES)


def make_offer(hosts: Sequence[str], spares: Sequence[str], *, nodes: int, out: Mapping[str, LeftOut], known: Mapping[str, Speed]) -> Offer:
    """Choose what a job is offered.

    Args:
        hosts: Of which it is given its hosts.
        spares: That take the place of others.
        nodes: How many it needs.
        out: Hosts that are out of service.
        known: How fast hosts are.

    Raises:
        PlanError: too few of them are in service.
    """
    able = in_order([host for host in hosts if host not in out], known)
    able_spares = in_order([host for host in spares if host not in out], known)
    left_out = tuple(out[host] for host in (*hosts, *spares) if host in out)
    short = nodes - len(able)
    if short > len(able_spares):
        raise _too_few(left_out, nodes, len(able) + len(able_spares))
    gone = [host for host in hosts if host in out]
    replaced = dict(zip(gone, able_spares[: max(short, 0)], strict=False))
    slow = {host: known[host].text() for host in (*able, *able_spares) if host in known and known[host].slow}
    return Offer(able, able_spares, left_out, replaced, slow)


def _too_few(left_out: Sequence[LeftOut], nodes: int, there: int) -> PlanError:
    why = "; ".join(f"{one.host} {one.reason}" for one in left_out)
    steps = [
        *(["release those that are well (primus-bootstrap node release)"] if any(one.known for one in left_out) else []),
        *(["mend those of which nothing is known (primus-bootstrap node list)"] if not all(one.known for one in left_out) else []),
        "ask for fewer hosts (workload_nodes)",
    ]
    hosts = f"{there} host{'s' if there != 1 else ''}"
    return PlanError(f"workload_nodes is {nodes}, and only {hosts} can be offered: {why}", fix=", or ".join(steps))
