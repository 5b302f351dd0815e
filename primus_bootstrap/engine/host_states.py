"""Decides the state of each host from what it answers now and from what earlier runs say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.engine.host_records import HostRecord
    from primus_bootstrap.fleet.messages import Answer
    from primus_bootstrap.fleet.service import Service

State = Literal["READY", "DEGRADED", "QUARANTINED", "UNREACHABLE", "UNKNOWN"]
STATES: tuple[State, ...] = ("READY", "DEGRADED", "QUARANTINED", "UNREACHABLE", "UNKNOWN")
# Without a suffix, Slurm's states of a node that takes jobs, or would if it were not busy.
_SLURM_READY = frozenset({"idle", "allocated", "mixed", "completing", "planned", "reserved"})
# Suffixes of power saving and reservations; `*` means that slurmd does not answer.
_SLURM_FLAGS = "~#!%$@^-+"
# The classes of missing answers (`messages.Cause`) that are about the host or its network. After others (a missing private key, a
# changed host key) nothing is known about the host.
_UNREACHABLE = frozenset({"timeout", "refused", "unreachable", "name", "lost"})


# The reason of a host that the bench has not measured yet: roles/bench/vars/main.yml. The phase bench of the run releases it.
_BENCH_PENDING = "bench pending"
_WAIT = "wait until the run has ended"


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of one host, with the reason and the fix (empty for READY)."""

    host: str
    state: State
    reason: str = ""
    fix: str = ""


def host_state(answer: Answer, service: Service, record: HostRecord, *, applying: bool = False) -> HostState:
    """Return the state of a host.

    Args:
        answer: The answer of the host itself.
        service: What the host, Slurm's controllers and Kubernetes answered.
        record: What earlier runs say.
        applying: A run is changing the cluster now.
    """
    if service.quarantine:
        silent = "" if answer.answered else "; the host does not answer"
        fix = f"repair it, then: primus-bootstrap node release hosts.yaml {service.host}"
        if applying and service.quarantine.reason == _BENCH_PENDING:
            fix = _WAIT
        return HostState(service.host, "QUARANTINED", f"{service.quarantine.owner}: {service.quarantine.reason}{silent}", fix)
    if answer.cause in _UNREACHABLE:
        return HostState(service.host, "UNREACHABLE", answer.detail, answer.fix)
    if found := next(_faults(service, record), None):
        return HostState(service.host, "DEGRADED", *found)
    if found := next(_gaps(answer, service, record, applying=applying), None):
        return HostState(service.host, "UNKNOWN", *found)
    return HostState(service.host, "READY")


def _faults(service: Service, record: HostRecord) -> Iterator[tuple[str, str]]:
    """Yield what is known to be wrong, with its fix, the gravest first."""
    if record.changed and record.changed.problem:
        yield record.changed.problem, f"{_report(record.changed.run)}; once it is mended: primus-bootstrap apply hosts.yaml"
    if service.health == "fail":
        yield f"health: {service.health_reason}", f"repair it, then: primus-bootstrap verify hosts.yaml --limit {service.host}"
    slurm = service.slurm.rstrip(_SLURM_FLAGS)
    if slurm and slurm not in _SLURM_READY:
        reason = f": {service.slurm_reason}" if service.slurm_reason else ""
        fix = f"repair it, then on a Slurm controller: scontrol update nodename={service.host} state=resume"
        yield f"Slurm: {service.slurm}{reason}", fix
    if service.kubernetes not in ("", "ready", "unknown"):
        reason = f": {service.kubernetes_reason}" if service.kubernetes_reason else ""
        yield f"Kubernetes: {service.kubernetes}{reason}", f"kubectl describe node {service.host}"
    if record.proven and record.proven.problem:
        yield record.proven.problem, f"{_report(record.proven.run)}; once it is mended: primus-bootstrap verify hosts.yaml"


def _report(run: str) -> str:
    return f"primus-bootstrap report hosts.yaml --run {run}"


def _gaps(answer: Answer, service: Service, record: HostRecord, *, applying: bool) -> Iterator[tuple[str, str]]:
    """Yield what is not known, with its fix."""
    if not service.answered:
        yield service.health_reason, answer.fix or f"run `primus-bootstrap ssh -i hosts.yaml {service.host}` and look for an error"
    if record.applied is None:
        fix = _WAIT if applying else "primus-bootstrap apply hosts.yaml"
        yield "no full apply has succeeded here", fix
    if service.health == "unknown":
        yield f"health: {service.health_reason}", f"primus-bootstrap verify hosts.yaml --limit {service.host}"
    if service.kubernetes == "unknown":
        yield f"Kubernetes: {service.kubernetes_reason}", "primus-bootstrap verify hosts.yaml"
    if record.proven and record.proven.unclear:
        yield record.proven.unclear, _WAIT if applying else f"primus-bootstrap verify hosts.yaml --limit {service.host}"
