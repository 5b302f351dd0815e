"""The plan as a value: it can be printed, compared, stored and tested before a host is touched."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "primus.plan/1"


@dataclass(frozen=True, slots=True)
class Step:
    """A phase bound to the hosts of one cluster.

    `playbook` is the file below `playbooks/`; `roles` are those that its plays name, in order; `why` is one
    sentence for people: which groups bring these hosts in.
    """

    phase: str
    playbook: str
    hosts: tuple[str, ...]
    roles: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What an apply would do, in order.

    `uncovered` names groups that have hosts and that no phase of this version reads: said in the plan, so that nobody
    believes that a service was brought up.
    """

    cluster: str
    inventory: str
    steps: tuple[Step, ...]
    uncovered: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that some step touches, in first-seen order."""
        return tuple(dict.fromkeys(host for step in self.steps for host in step.hosts))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {"schema": SCHEMA, **asdict(self)}
