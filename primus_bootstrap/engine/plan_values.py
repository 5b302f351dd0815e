"""The plan of a run: its steps, each with a phase, its hosts and its roles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "primus.plan/1"


@dataclass(frozen=True, slots=True)
class Step:
    """A phase and its hosts in one cluster.

    `playbook` is the path below `playbooks/`. `roles` are the roles of its plays, in order. `why` names the groups that
    select these hosts.
    """

    phase: str
    playbook: str
    hosts: tuple[str, ...]
    roles: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a run, in order.

    `uncovered` are groups with hosts that no phase of this version uses. The plan lists them, because nothing is installed
    for them.
    """

    cluster: str
    inventory: str
    steps: tuple[Step, ...]
    uncovered: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of all steps, in order of their first step."""
        return tuple(dict.fromkeys(host for step in self.steps for host in step.hosts))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data for `json.dumps`."""
        return {"schema": SCHEMA, **asdict(self)}
