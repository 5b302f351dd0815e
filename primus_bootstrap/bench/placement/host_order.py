"""In which order a job is offered hosts, by what benches measured of them: the one place that says so. Pure functions.

1. measured, and not slow: in the order of hosts.yaml. What they differ by among each other is mostly noise, and who stands side by side in
   hosts.yaml mostly shares a switch.
2. not measured, or with nothing to compare it with: unknown is neither good nor bad.
3. slow: a bench failed a value of theirs, or their worst value is `Settings.blind_percent` or more behind the median of their peers. The
   least slow comes first.

Equal ones keep the order that they are given in. Only speeds count: what else speaks against a host takes it out of service.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.samples import to_level
from primus_bootstrap.bench.results.reader import measurable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun, Value

_GOOD, _UNMEASURED, _SLOW = range(3)


@dataclass(frozen=True, slots=True)
class Speed:
    """A host's worst value: its speed as a share of its peers' median (1 is as fast), and in which check and on which device.

    `share` is None where there is no peer to compare it with; `failed` says that a bench failed a value of this host.
    """

    share: float | None
    check: str = ""
    device: str = ""
    failed: bool = False

    @property
    def slow(self) -> bool:
        """Whether the host is offered after those of which nothing is known."""
        return self.failed or (self.share is not None and 100 * (1 - self.share) >= JudgingSettings().blind_percent)

    def text(self) -> str:
        """Return why the host is slow, for people."""
        where = f"{self.check} on {self.device}" if self.device else self.check
        behind = "a bench failed it" if self.share is None else f"{100 * self.share:.0f} % of its peers' median"
        return f"{where}: {behind}"


def newest_values(runs: Iterable[BenchRun], hosts: Iterable[str]) -> tuple[Value, ...]:
    """Return of each host and benchmark what the newest bench that measured it says.

    `runs` come newest first, and are read only until each of `hosts` is measured.
    """
    wanted, seen = set(hosts), set[tuple[str, str]]()
    found: list[Value] = []
    for run in runs:
        new = [value for value in run.values if (value.host, value.benchmark) not in seen]
        found += new
        seen |= {(value.host, value.benchmark) for value in new}
        wanted -= {value.host for value in new}
        if not wanted:
            break
    return tuple(found)


def speeds(values: Iterable[Value]) -> dict[str, Speed]:
    """Return how fast each host is: the worst over its checks and devices, against peers of its model with the same versions."""
    groups: dict[tuple[str, ...], list[tuple[Value, float]]] = defaultdict(list)
    for value in values:
        # A result of several hosts ("a,b") is nobody's alone.
        if value.better and "," not in value.host and measurable(value.value, value.unit):
            key = (value.benchmark, value.series, value.unit, value.better, value.model, value.stack)
            groups[key].append((value, to_level(value.value, value.unit, value.better)))
    found: dict[str, Speed] = {}
    for members in groups.values():
        center = median(level for _, level in members) if len({value.host for value, _ in members}) > 1 else None
        for value, level in members:
            share = None if center is None else math.exp(level - center)
            found[value.host] = _worse(found.get(value.host), Speed(share, value.benchmark, value.device, value.verdict == "fail"))
    return found


def in_order(hosts: Sequence[str], known: Mapping[str, Speed]) -> tuple[str, ...]:
    """Return hosts in the order in which a job is offered them."""
    return tuple(sorted(hosts, key=lambda host: _rank(known.get(host))))


def _rank(speed: Speed | None) -> tuple[int, float]:
    if speed is None or (speed.share is None and not speed.failed):
        return _UNMEASURED, 0.0
    return (_SLOW, -(speed.share or 0.0)) if speed.slow else (_GOOD, 0.0)


def _worse(one: Speed | None, other: Speed) -> Speed:
    """Return the worse of two values of a host: one that failed, else the slower one."""

    def rank(speed: Speed) -> tuple[bool, float]:
        return not speed.failed, math.inf if speed.share is None else speed.share

    return other if one is None else min(one, other, key=rank)
