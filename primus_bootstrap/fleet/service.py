"""Ask hosts whether they are in service: quarantined by whom and why, how healthy, and what Slurm's controllers say of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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
    """A host out of service; `since` is seconds since the epoch. `readable` is False where a record lies there that nobody can read."""

    owner: str
    reason: str
    since: float
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Service:
    """One host's service. `health` is a verdict, or empty where the host has no checks.

    `slurm` is empty where Slurm has no such node, `kubernetes` where the host is not to be one.
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

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)


def service_task(targets: Sequence[Target], *, known_hosts: Path, timeout_s: float) -> Task:
    """Return the look as a task for the fan-out."""
    script = (content.roles_dir() / "quarantine/files/look_host.py").read_text(encoding="utf-8")
    stdin = {target.host: f"{target.python}\n{len(script)}\n{script}" for target in targets}
    return Task(probe_command(), stdin, timeout_s, str(known_hosts))


def read_services(answers: Iterable[Answer], wanted: Sequence[str]) -> tuple[Service, ...]:
    """Put together what hosts say of themselves and what controllers say of them; who does not answer is unknown, never good."""
    told: dict[str, Mapping[str, Any]] = {}
    silent: dict[str, str] = {}
    for answer in answers:
        try:
            told[answer.host] = json.loads(answer.stdout.strip().rpartition("\n")[2])
        except ValueError:
            silent[answer.host] = answer.detail or answer.stderr.strip()[-200:] or "it gave no answer"
    return tuple(_service(host, told, silent.get(host, "")) for host in wanted)


def _service(host: str, told: Mapping[str, Mapping[str, Any]], silent: str) -> Service:
    own = told.get(host, {})
    records = [own.get("quarantine"), *(one["records"].get(host) for one in told.values())]
    newest = max((record for record in records if record), key=lambda record: float(record["time"]), default=None)
    health = own.get("health") or {"verdict": "unknown", "reason": silent}
    state, reason = next((one["slurm"][host] for one in told.values() if host in one["slurm"]), ("", ""))
    return Service(
        host=host,
        answered=host in told,
        quarantine=read_quarantine(newest) if newest else None,
        health=health["verdict"],
        health_reason=health["reason"],
        slurm=state,
        slurm_reason="" if reason == "none" else reason,
    )


def read_quarantine(record: Mapping[str, Any]) -> Quarantine:
    """Read a record as it is kept on hosts, controllers and Nodes."""
    return Quarantine(record["owner"], record["reason"], float(record["time"]), readable=not record.get("unreadable", False))
