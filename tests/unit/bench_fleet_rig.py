"""Simulated results of fleets with known faults, to test the evaluation."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from primus_bootstrap.bench.judging.floors import Floors
from primus_bootstrap.bench.judging.statistics import MEDIAN_ERROR
from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, evaluate_results
from primus_bootstrap.bench.results.history import History
from primus_bootstrap.bench.results.reader import MAX_SAMPLES, Result, Series, canonical

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings

STACK = ("2.13.0", "", "7.0", "6.14.0")
_NO_FLOORS = Floors()
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
        "samples": tuple(samples)[:MAX_SAMPLES],
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
        """Draw the speeds: healthy hosts differ by `apart` times sigma, bad ones are slower by the share `slowdown`."""
        self.names = [f"node{number:04}" for number in range(hosts)]
        self.bad = set(rng.sample(self.names, bad))
        self._rng = rng
        self._sample_sigma = sigma * repeats**0.5 / MEDIAN_ERROR
        self._repeats = repeats
        self._speed = {name: 100.0 * (1 + rng.gauss(0, apart * sigma)) / (1 + slowdown * (name in self.bad)) for name in self.names}

    def measure(self, host: str, *, repeats: int = 0, started: float = 1_795_348_800.0) -> Result:
        """Return the result of one run on a host."""
        speed = self._speed[host]
        samples = [max(1e-3, speed * (1 + self._rng.gauss(0, self._sample_sigma))) for _ in range(repeats or self._repeats)]
        return result(host, samples, started=started)

    def bench(self, settings: JudgingSettings) -> tuple[BenchEvaluation, BenchEvaluation]:
        """Measure all hosts and carry out all reruns; return the first and the last evaluation."""
        results = [self.measure(host) for host in self.names]
        first = last = _evaluate(results, settings, 0)
        for rounds_done in range(1, settings.max_rounds + 1):
            results += [self.measure(rerun.host, repeats=rerun.repeats, started=1_795_348_800.0 + rounds_done) for rerun in last.reruns]
            last = _evaluate(results, settings, rounds_done)
        return first, last


class Devices:
    """Hosts of several devices in several series; one device of a bad host is slow in all series.

    `noise` is the relative standard deviation of a sample, `apart` that of healthy devices in each series.
    """

    def __init__(
        self, rng: random.Random, hosts: int, *, devices: int, series: int, bad: int, slowdown: float, noise: float, apart: float
    ) -> None:
        """Draw the speed of every device in every series."""
        self.names = [f"node{number:04}" for number in range(hosts)]
        self.bad = set(rng.sample(self.names, bad))
        self._rng = rng
        self._noise = noise
        self._series = [
            SERIES._replace(sizes=canonical({"m": 8192 + 128 * number, "n": 8192, "k": 8192, "dtype": "bf16"})) for number in range(series)
        ]
        slow = {(name, rng.randrange(devices)) for name in sorted(self.bad)}
        self._speed = {
            (name, device, number): 700.0 * (1 + rng.gauss(0, apart)) / (1 + slowdown * ((name, device) in slow))
            for name in self.names
            for device in range(devices)
            for number in range(series)
        }

    def measure(self, host: str, *, repeats: int = 20, started: float = 1_795_348_800.0) -> list[Result]:
        """Return the results of one run on a host, of a model with a floor."""
        gauss, model = self._rng.gauss, "AMD Instinct MI300X"
        return [
            result(
                name,
                [speed * (1 + gauss(0, self._noise)) for _ in range(repeats)],
                device=str(device),
                series=self._series[number],
                started=started,
                model=model,
            )
            for (name, device, number), speed in self._speed.items()
            if name == host
        ]

    def bench(self, settings: JudgingSettings, floors: Floors) -> BenchEvaluation:
        """Measure all hosts and carry out all reruns; return the last evaluation."""
        results = [one for host in self.names for one in self.measure(host)]
        last = _evaluate(results, settings, 0, floors)
        for rounds_done in range(1, settings.max_rounds + 1):
            for rerun in last.reruns:
                results += self.measure(rerun.host, repeats=rerun.repeats, started=1_795_348_800.0 + rounds_done)
            last = _evaluate(results, settings, rounds_done, floors)
        return last


def _evaluate(results: Sequence[Result], settings: JudgingSettings, rounds_done: int, floors: Floors = _NO_FLOORS) -> BenchEvaluation:
    return evaluate_results(results, floors=floors, history=History(), settings=settings, rounds_done=rounds_done)


def shares(fleet: Fleet | Devices, found: Mapping[str, str]) -> dict[str, int]:
    """Count bad and healthy hosts by verdict."""
    counts = dict.fromkeys([f"{kind} {word}" for kind in ("bad", "healthy") for word in ("fail", "unknown", "pass")], 0)
    for host, word in found.items():
        counts[f"{'bad' if host in fleet.bad else 'healthy'} {word}"] += 1
    return counts
