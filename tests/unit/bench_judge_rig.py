"""Synthetic results of made-up fleets: what their hosts really are is known, and judging is held against it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from primus_bootstrap.bench.floors import Floors
from primus_bootstrap.bench.history import History
from primus_bootstrap.bench.judge import Judgement, judge
from primus_bootstrap.bench.results import MOST_SAMPLES, Result, Series, canonical
from primus_bootstrap.bench.robust import MEDIAN_ERROR

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.settings import Settings

STACK = ("2.13.0", "", "7.0", "6.14.0")
SERIES = Series("gemm", "tflop_per_s", canonical({"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}), 1)


def result(host: str, samples: Sequence[float] = (), **other: object) -> Result:
    """Return a result; without samples it has neither a value nor repeats."""
    fields: dict[str, object] = {
        "series": SERIES,
        "value": statistics.median(samples) if samples else None,
        "unit": "TFLOP/s",
        "better": "higher",
        "host": host,
        "device": "",
        "model": "Test GPU",
        "serial": f"serial-{host}-{other.get('device', '')}",
        "repeats": len(samples),
        "samples": tuple(samples)[:MOST_SAMPLES],
        "correct": True,
        "error": "",
        "stack": STACK,
        "time": "2026-11-22T12:00:00+00:00",
        "started": 1_795_348_800.0,
        "seconds": 1.0,
        **other,
    }
    return Result(**fields)  # type: ignore[arg-type]


class Fleet:
    """Hosts with a true speed each. `sigma` is the relative standard deviation of a host's median over `repeats` samples."""

    def __init__(
        self, rng: random.Random, hosts: int, *, bad: int, slowdown: float, sigma: float, apart: float = 0.5, repeats: int = 20
    ) -> None:
        """Make healthy hosts differ by `apart` times sigma, and the bad ones be slower by `slowdown` (relative) than they would be."""
        self.names = [f"node{number:04}" for number in range(hosts)]
        self.bad = set(rng.sample(self.names, bad))
        self._rng = rng
        self._sample_sigma = sigma * repeats**0.5 / MEDIAN_ERROR
        self._repeats = repeats
        self._speed = {name: 100.0 * (1 + rng.gauss(0, apart * sigma)) / (1 + slowdown * (name in self.bad)) for name in self.names}

    def measure(self, host: str, *, repeats: int = 0, started: float = 1_795_348_800.0) -> Result:
        """Return what one run on a host gives."""
        speed = self._speed[host]
        samples = [max(1e-3, speed * (1 + self._rng.gauss(0, self._sample_sigma))) for _ in range(repeats or self._repeats)]
        return result(host, samples, started=started)

    def bench(self, settings: Settings) -> tuple[Judgement, Judgement]:
        """Measure everybody, and again whatever judging asks for; return the first judgement and the last."""
        results = [self.measure(host) for host in self.names]
        first = last = _judge(results, settings, 0)
        for rounds_done in range(1, settings.most_rounds + 1):
            results += [self.measure(again.host, repeats=again.repeats, started=1_795_348_800.0 + rounds_done) for again in last.again]
            last = _judge(results, settings, rounds_done)
        return first, last


def _judge(results: Sequence[Result], settings: Settings, rounds_done: int) -> Judgement:
    return judge(results, floors=Floors(), history=History(), settings=settings, rounds_done=rounds_done)


def shares(fleet: Fleet, found: Mapping[str, str]) -> dict[str, int]:
    """Count bad and healthy hosts by verdict."""
    counts = dict.fromkeys([f"{kind} {word}" for kind in ("bad", "healthy") for word in ("fail", "unknown", "pass")], 0)
    for host, word in found.items():
        counts[f"{'bad' if host in fleet.bad else 'healthy'} {word}"] += 1
    return counts
