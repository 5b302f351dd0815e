"""The state of the runs over several hosts: who takes part, and which groups run in the current round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from primus_bootstrap.bench.fabric.group_runs import GroupRun
from primus_bootstrap.core.structured import readable


@readable
@dataclass(frozen=True, slots=True)
class FabricState:
    """The content of incoming/fabric.json."""

    hosts: tuple[str, ...]  # the hosts that took part at the start
    absent: Mapping[str, tuple[str, str]]  # verdict and reason of each measured host that did not take part
    facts: Mapping[str, Mapping[str, str]]  # `address`, `switch` and `rack` of each host, as the inventory states them
    models: Mapping[str, str]  # the device models of each host
    begun: float  # start of the first round, by the controller's clock (seconds since the epoch)
    left: Mapping[str, str] = field(default_factory=dict)  # why a host no longer takes part
    number: int = 0  # number of the current round
    runs: tuple[GroupRun, ...] = ()  # the groups of the current round
    given_up: str = ""  # why no further groups run; empty if they do
    done: bool = False  # whether the last round has ended
