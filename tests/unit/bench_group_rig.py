"""Hosts of a simulated fabric that run in groups: some are slow, broken, hang, or compute wrongly."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 1_795_350_000.0


def line(bus: float, hosts: int, *, correct: bool = True, error: str = "", metric: str = "bus_gb_per_s") -> str:
    """Return a result line of collectives, as rank 0 writes it; the samples scatter by half a percent."""
    samples = [] if error else [bus * (1 + number / 1000) for number in (-5, -3, 0, 0, 0, 3, 5)]
    size = 67108864 // (4 * hosts) * (4 * hosts)
    return json.dumps(
        {
            "schema": "primus.result/1", "benchmark": "collectives", "metric": metric, "value": None if error else bus,
            "unit": "GB/s", "better": "higher", "host": "n", "device": "", "model": "MI300X", "serial": "", "ranks": 8 * hosts,
            "sizes": {"collective": "all_reduce", "bytes": size, "dtype": "fp32", "hosts": hosts}, "repeats": len(samples),
            "samples": samples, "p95": None if error else bus, "correct": None if error else correct, "error": error,
            "versions": {"python": "3.11", "torch": "2.13.0", "cuda": None, "rocm": None, "driver": None, "git_commit": None},
            "time": "2026-11-22T12:19:40+00:00", "seconds": 1.0, "options": {},
        }
    )  # fmt: skip


def step(results: Sequence[str] = (), **other: Any) -> dict[str, Any]:
    """Return the output of one host's part."""
    usual = {"name": "collectives", "code": 0, "error": "", "stdout": "", "stderr": "", "started": NOW, "seconds": 2.0, "jobs": []}
    return {**usual, "results": list(results), **other}


@dataclass
class Hosts:
    """Hosts by fault: `slow` by a factor; `broken` fail, `hanging` never end, `wrong` compute wrongly; `noise` is a factor of a pair."""

    slow: dict[str, float] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    hanging: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    noise: dict[frozenset[str], float] = field(default_factory=dict)
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the answer of each host of a group."""
        group = tuple(hosts)
        self.ran.append(group)
        members = set(group)
        if members & self.hanging:
            return {host: {"step": step(error="no answer within 360 s", code=-1)} for host in group}
        if members & self.broken:
            failed = step([line(0, len(group), error="RuntimeError: Connection closed by peer")], code=1)
            return {host: {"step": failed} for host in group}
        # A small deterministic difference between pairs, from their names.
        difference = 1 + (sum(map(ord, "".join(sorted(group)))) % 7 - 3) / 1000
        bus = 300.0 * difference / max([1.0, *(self.slow.get(host, 1.0) for host in group)]) * self.noise.get(frozenset(group), 1.0)
        wrong = bool(members & self.wrong)
        first = step([line(bus, len(group), correct=not wrong)], code=int(wrong))
        return {host: {"step": first if host == group[0] else step(code=int(wrong))} for host in group}
