"""The state of the runs over several hosts: who takes part, and which groups run in the current round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from primus_bootstrap.bench.fabric.group_runs import GroupRun
from primus_bootstrap.core.structured import readable


@readable
@dataclass(frozen=True, slots=True)
class FabricState:
    """The content of incoming/fabric.json.

    Attributes:
        hosts: The hosts that took part at the start.
        absent: Verdict and reason of each measured host that did not take part.
        facts: `address`, `switch` and `rack` of each host, as the inventory states them.
        models: The device models of each host.
        begun: Start of the first round, by the controller's clock (seconds since the epoch).
        left: Why a host no longer takes part.
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
    left: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    runs: tuple[GroupRun, ...] = ()
    given_up: str = ""
    done: bool = False
