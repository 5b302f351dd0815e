"""Read whether hosts are in service: their quarantine, their health, and their state in Slurm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.fleet.messages import Task
from primus_bootstrap.fleet.probe import probe_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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


def service_task(targets: Sequence[Target], *, known_hosts: Path, timeout_s: float) -> Task:
    """Return a task for the fan-out that reads the state of hosts."""
    script = (content.roles_dir() / "quarantine/files/look_host.py").read_text(encoding="utf-8")
    stdin = {target.host: f"{target.python}\n{len(script)}\n{script}" for target in targets}
    return Task(probe_command(), stdin, timeout_s, str(known_hosts))


def read_services(answers: Iterable[Answer], hosts: Sequence[str]) -> tuple[Service, ...]:
    """Combine the answers of hosts and Slurm controllers. The health of a host without an answer is unknown."""
    states: dict[str, Mapping[str, Any]] = {}
    failures: dict[str, str] = {}
    for answer in answers:
        try:
            states[answer.host] = json.loads(answer.stdout.strip().rpartition("\n")[2])
        except ValueError:
            failures[answer.host] = answer.detail or answer.stderr.strip()[-200:] or "it gave no answer"
    return tuple(_service(host, states, failures.get(host, "")) for host in hosts)


def _service(host: str, states: Mapping[str, Mapping[str, Any]], failure: str) -> Service:
    state_of_host = states.get(host, {})
    records = [state_of_host.get("quarantine"), *(state["records"].get(host) for state in states.values())]
    newest = max((record for record in records if record), key=lambda record: float(record["time"]), default=None)
    health = state_of_host.get("health") or {"verdict": "unknown", "reason": failure}
    slurm, reason = next((state["slurm"][host] for state in states.values() if host in state["slurm"]), ("", ""))
    return Service(
        host=host,
        answered=host in states,
        quarantine=read_quarantine(newest) if newest else None,
        health=health["verdict"],
        health_reason=health["reason"],
        slurm=slurm,
        slurm_reason="" if reason == "none" else reason,
    )


def read_quarantine(record: Mapping[str, Any]) -> Quarantine:
    """Parse the quarantine record of a host, a controller or a Node."""
    return Quarantine(record["owner"], record["reason"], float(record["time"]), readable=not record.get("unreadable", False))
