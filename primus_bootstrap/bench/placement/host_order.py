"""Order the hosts for a job by the speed that benches measured. Pure functions.

1. Measured hosts that are not slow, in the order of hosts.yaml: their differences are mostly noise, and neighbours in hosts.yaml
   usually share a switch.
2. Hosts without a measurement, or without peers to compare them with.
3. Slow hosts, the least slow first: a bench failed one of their values, or their worst value is `JudgingSettings.blind_percent` or more
   below the median of their peers.

Only speed counts here. Other faults take a host out of service.
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

    from primus_bootstrap.bench.report.bench_report import BenchRun, ReportedValue

_GOOD, _UNMEASURED, _SLOW = range(3)


@dataclass(frozen=True, slots=True)
class Speed:
    """The worst value of a host."""

    share: float | None  # its speed as a share of the median of its peers; None without peers
    check: str = ""  # the benchmark
    device: str = ""  # the device
    failed: bool = False  # whether a bench failed a value of this host

    @property
    def slow(self) -> bool:
        """Whether the host comes after those without a measurement."""
        return self.failed or (self.share is not None and 100 * (1 - self.share) >= JudgingSettings().blind_percent)

    def text(self) -> str:
        """Return why the host is slow."""
        where = f"{self.check} on {self.device}" if self.device else self.check
        return f"{where}: a bench failed it" if self.share is None else f"{where}: {100 * self.share:.0f} % of its peers' median"


def newest_values(runs: Iterable[BenchRun], hosts: Iterable[str]) -> tuple[ReportedValue, ...]:
    """Return for each host and benchmark the values of the newest bench that measured it.

    Args:
        runs: Benches, newest first. They are read only until all of `hosts` are found.
    """
    missing, found = set(hosts), set[tuple[str, str]]()
    values: list[ReportedValue] = []
    for run in runs:
        new = [value for value in run.values if (value.host, value.benchmark) not in found]
        values += new
        found |= {(value.host, value.benchmark) for value in new}
        missing -= {value.host for value in new}
        if not missing:
            break
    return tuple(values)


def host_speeds(values: Iterable[ReportedValue]) -> dict[str, Speed]:
    """Return the speed of each host: its worst value, compared with peers of the same model and versions."""
    groups: dict[tuple[str, ...], list[tuple[ReportedValue, float]]] = defaultdict(list)
    for value in values:
        # A value of several hosts ("a,+1") belongs to none of them.
        if value.better and "," not in value.host and measurable(value.value, value.unit):
            key = (value.benchmark, value.series, value.unit, value.better, value.model, value.stack)
            groups[key].append((value, to_level(value.value, value.unit, value.better)))
    speeds: dict[str, Speed] = {}
    for members in groups.values():
        center = median(level for _, level in members) if len({value.host for value, _ in members}) > 1 else None
        for value, level in members:
            share = None if center is None else math.exp(level - center)
            speed = Speed(share, value.benchmark, value.device, value.verdict == "fail")
            speeds[value.host] = _worse(speeds.get(value.host), speed)
    return speeds


def order_hosts(hosts: Sequence[str], speeds: Mapping[str, Speed]) -> tuple[str, ...]:
    """Return the hosts in the order in which a job gets them."""
    return tuple(sorted(hosts, key=lambda host: _rank(speeds.get(host))))


def _rank(speed: Speed | None) -> tuple[int, float]:
    if speed is None or (speed.share is None and not speed.failed):
        return _UNMEASURED, 0.0
    return (_SLOW, -(speed.share or 0.0)) if speed.slow else (_GOOD, 0.0)


def _worse(one: Speed | None, other: Speed) -> Speed:
    """Return the worse speed of a host: a failed one, else the lower one."""

    def rank(speed: Speed) -> tuple[bool, float]:
        return not speed.failed, math.inf if speed.share is None else speed.share

    return other if one is None else min(one, other, key=rank)
