"""Records of runs over several hosts, as the store saves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from primus_bootstrap.bench.results.host_answers import StepOutput
from primus_bootstrap.bench.results.reader import parse_lines
from primus_bootstrap.core.structured import readable

if TYPE_CHECKING:
    from primus_bootstrap.bench.results.reader import Result

Answer = Literal["pass", "fail", "unknown"]


@readable
@dataclass(frozen=True, slots=True)
class GroupRun:
    """Hosts that run a step together, in the order of their ranks; `step` is its number in the tier."""

    step: int
    hosts: tuple[str, ...]


@readable
@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """A host's answer to its part of a group run."""

    number: int = 0  # number of the round
    started: bool = False  # whether the part started
    absent: str = ""  # why it did not start
    step: StepOutput | None = None  # its output
    cut: str = ""  # why there is no output although it started


@readable
@dataclass(frozen=True, slots=True)
class GroupRunResult:
    """A finished group run."""

    step: int  # number of the step in the tier
    hosts: tuple[str, ...]  # the group, in the order of the ranks
    answer: Answer  # whether it passed
    reason: str = ""  # why it did not pass
    lines: tuple[str, ...] = ()  # result lines with the bus bandwidth
    starts: Mapping[str, float] = field(default_factory=dict)  # start time by each host's own clock (seconds since the epoch)
    seconds: float = 0.0  # duration

    def results(self) -> tuple[Result, ...]:
        """Return the bus bandwidths as results of the whole group."""
        return parse_lines([line.encode() for line in self.lines], name=",".join(self.hosts)).results if self.lines else ()


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
