"""The state of the runs over several hosts: who takes part, and which groups run in the current round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.fabric.group_runs import GroupRun

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class FabricState:
    """The content of incoming/fabric.json.

    Attributes:
        hosts: The hosts that took part at the start.
        absent: Verdict and reason of each measured host that did not take part.
        facts: `address`, `switch` and `rack` of each host, as the inventory states them.
        models: The device models of each host.
        begun: Start of the first round, by the controller's clock (seconds since the epoch).
        dropped: Why a host no longer takes part.
        number: Number of the current round.
        runs: The groups of the current round.
        given_up: Why no further groups run; empty if they do.
        done: Whether the last round has ended.
    """

    hosts: tuple[str, ...]
    absent: Mapping[str, tuple[str, str]]
    facts: Mapping[str, Mapping[str, str]]
    models: Mapping[str, str]
    begun: float
    dropped: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    runs: tuple[GroupRun, ...] = ()
    given_up: str = ""
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {
            "hosts": list(self.hosts),
            "absent": dict(self.absent),
            "facts": dict(self.facts),
            "models": dict(self.models),
            "left": dict(self.dropped),
            "begun": self.begun,
            "number": self.number,
            "runs": [{"step": run.step, "hosts": list(run.hosts)} for run in self.runs],
            "given_up": self.given_up,
            "done": self.done,
        }


def parse_fabric_state(data: Mapping[str, Any]) -> FabricState:
    """Read what `FabricState.to_json` wrote."""
    return FabricState(
        hosts=tuple(data["hosts"]),
        absent={host: (str(outcome), str(reason)) for host, (outcome, reason) in data["absent"].items()},
        facts=data["facts"],
        models=data["models"],
        begun=float(data["begun"]),
        dropped=data["left"],
        number=int(data["number"]),
        runs=tuple(GroupRun(int(run["step"]), tuple(run["hosts"])) for run in data["runs"]),
        given_up=str(data["given_up"]),
        done=bool(data["done"]),
    )
