"""Read whether hosts are in service: their quarantine, their health, and their state in Slurm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.core.structured import InvalidDataError, read, readable
from primus_bootstrap.fleet.messages import Task
from primus_bootstrap.fleet.probe import probe_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from primus_bootstrap.fleet.messages import Answer, Target


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A quarantine of a host; `since` is seconds since the epoch. `readable` is False for a damaged record."""

    owner: str
    reason: str
    since: float
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Service:
    """The service state of one host. `health` is a verdict, or empty without health checks.

    `slurm` and `kubernetes` are empty if the host is not a node there.
    """

    host: str
    answered: bool
    quarantine: Quarantine | None = None
    health: str = "unknown"
    health_reason: str = ""
    slurm: str = ""
    slurm_reason: str = ""
    kubernetes: str = ""
    kubernetes_reason: str = ""


@readable
@dataclass(frozen=True, slots=True)
class _Record:
    """A quarantine record; without an owner there is none."""

    owner: str = ""
    reason: str = ""
    time: float = 0.0
    unreadable: bool = False


@readable
@dataclass(frozen=True, slots=True)
class _Health:
    """The health of a host."""

    verdict: str
    reason: str


@readable
@dataclass(frozen=True, slots=True)
class _HostState:
    """The output of look_host.py. `records` and `slurm` (state and reason) have the hosts that a controller knows."""

    quarantine: _Record
    health: _Health
    records: Mapping[str, _Record] = field(default_factory=dict)
    slurm: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def service_task(targets: Sequence[Target], *, known_hosts: Path, timeout_s: float) -> Task:
    """Return a task for the fan-out that reads the state of hosts."""
    script = (content.roles_dir() / "quarantine/files/look_host.py").read_text(encoding="utf-8")
    stdin = {target.host: f"{target.python}\n{len(script)}\n{script}" for target in targets}
    return Task(probe_command(), stdin, timeout_s, str(known_hosts))


def read_services(answers: Iterable[Answer], hosts: Sequence[str]) -> tuple[Service, ...]:
    """Combine the answers of hosts and Slurm controllers. The health of a host without an answer is unknown."""
    states: dict[str, _HostState] = {}
    failures: dict[str, str] = {}
    for answer in answers:
        try:
            states[answer.host] = read(_HostState, json.loads(answer.stdout.strip().rpartition("\n")[2]), ignore_unknown=True)
        except (ValueError, RecursionError):
            failures[answer.host] = answer.detail or answer.stderr.strip()[-200:] or "it gave no answer"
        except InvalidDataError as error:
            failures[answer.host] = f"its answer is invalid: {error.issues[0]}"
    return tuple(_service(host, states, failures.get(host, "")) for host in hosts)


def _service(host: str, states: Mapping[str, _HostState], failure: str) -> Service:
    records = [states[host].quarantine] if host in states else []
    records += [state.records[host] for state in states.values() if host in state.records]
    newest = max((record for record in records if record.owner), key=lambda record: record.time, default=None)
    health = states[host].health if host in states else _Health("unknown", failure)
    slurm, reason = next((state.slurm[host] for state in states.values() if host in state.slurm), ("", ""))
    return Service(
        host=host,
        answered=host in states,
        quarantine=_quarantine(newest) if newest else None,
        health=health.verdict,
        health_reason=health.reason,
        slurm=slurm,
        slurm_reason="" if reason == "none" else reason,
    )


def read_quarantine(record: Mapping[str, Any]) -> Quarantine:
    """Read the quarantine record of a Node."""
    return _quarantine(read(_Record, record, ignore_unknown=True))


def _quarantine(record: _Record) -> Quarantine:
    return Quarantine(record.owner, record.reason, record.time, readable=not record.unreadable)
