"""Measures verdicts on synthetic fleets with slow hosts, and the time to evaluate a large fleet.

`sigma` is the relative standard deviation of one host's median over its 20 repeats. Healthy hosts differ by half of it. A planted host is
slower by a multiple of sigma. As in a bench, unclear hosts get more repeats.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter

import pytest

from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.statistics import MEDIAN_ERROR
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from primus_bootstrap.bench.results.history import History
from primus_bootstrap.bench.results.reader import Series, canonical
from tests.unit.bench_fleet_rig import STACK, Devices, Fleet, result, shares

pytestmark = pytest.mark.perf

MIN_RECALL_PERCENT, MAX_FALSE_PERCENT = 95.0, 1.0
SIGMAS_PERCENT = (0.5, 1.0, 2.0)
# Hosts, planted hosts, fleets. Fleets of fewer than 16 hosts have too few peers for a guarantee.
FLEETS = ((6, 1, 20), (8, 1, 20), (16, 1, 80), (32, 1, 60), (64, 6, 15), (256, 3, 16), (256, 26, 4), (1024, 102, 1))
MIN_HOSTS = 16
SLOWDOWNS = (0, 1, 2, 3, 4, 6)
MIN_SLOWDOWN = 4

# Noise of a sample and spread of healthy devices; the larger spreads make comparison with peers unreliable.
MANY_SPREADS = ((0.01, 0.005), (0.002, 0.015), (0.002, 0.03))
MANY_FLEETS = ((8, 1, 5), (32, 3, 2))
MANY_SLOWDOWNS = (0, 4, 6)
# Healthy hosts that may be unknown: of some thousand values a few are outliers by chance.
MAX_UNKNOWN_PERCENT = 10.0

NODES, DEVICES, SERIES = 4096, 8, 20
MAX_SECONDS = 60.0


def _percent(count: Counter[str], kind: str, word: str) -> float:
    total = sum(number for name, number in count.items() if name.startswith(kind))
    return 100 * count[f"{kind} {word}"] / total if total else 0.0


def _cell(size: tuple[int, int, int], slowdown: int, sigma: float, *, apart: float, settings: JudgingSettings) -> Counter[str]:
    hosts, bad, fleets = size
    counted: Counter[str] = Counter()
    for seed in range(fleets):
        # The seed is the same on every machine and different for every cell.
        rng = random.Random(f"{hosts} {bad} {slowdown} {sigma} {apart} {seed}")  # noqa: S311 - no secret
        fleet = Fleet(rng, hosts, bad=bad if slowdown else 0, slowdown=slowdown * sigma, sigma=sigma, apart=apart)
        counted.update(shares(fleet, fleet.bench(settings)[1].hosts))
    return counted


def _row(name: str, counted: Counter[str]) -> str:
    kinds = [(kind, word) for kind in ("bad", "healthy") for word in ("fail", "unknown", "pass")]
    return f"  {name:<34}" + "".join(f"{_percent(counted, kind, word):>10.2f}" for kind, word in kinds)


def _head(title: str) -> str:
    columns = "".join(f"{word:>10}" for word in ("fail", "unknown", "pass") * 2)
    return f"\n{title}\n  {'':<34}{'planted hosts (%)':>30}{'healthy hosts (%)':>30}\n  {'slowdown x sigma, hosts (planted)':<34}{columns}"


def test_planted_hosts_fail_and_healthy_hosts_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    """With at least 16 hosts and 4 sigma, 95 % of the planted hosts fail. At most 1 % of the healthy hosts fail in any case."""
    lines: list[str] = []
    found: list[tuple[str, int, int, float, float]] = []
    for sigma in SIGMAS_PERCENT:
        lines.append(_head(f"judge: sigma {sigma:g} %, healthy hosts differ by {sigma / 2:g} %, up to 3 rounds of repeats"))
        for size in FLEETS:
            for slowdown in SLOWDOWNS:
                counted = _cell(size, slowdown, sigma / 100, apart=0.5, settings=JudgingSettings())
                name = f"{slowdown} x {sigma:g} % = {slowdown * sigma:.1f} %, {size[0]} ({size[1] if slowdown else 0})"
                lines.append(_row(name, counted))
                found.append((name, size[0], slowdown, _percent(counted, "bad", "fail"), _percent(counted, "healthy", "fail")))

    with capsys.disabled():
        print("\n".join(lines))
    missed = [row for row in found if row[1] >= MIN_HOSTS and row[2] >= MIN_SLOWDOWN and row[3] < MIN_RECALL_PERCENT]
    assert not missed
    assert not [row for row in found if row[4] > MAX_FALSE_PERCENT]


def test_a_precise_benchmark_ignores_slowdowns_below_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """With sigma 0.1 %, a slowdown of 0.4 % passes and 2 % fails. With smallest_slowdown_percent=0.2, 0.4 % fails as well."""
    default = {slowdown: _cell((64, 6, 20), slowdown, 0.001, apart=0.5, settings=JudgingSettings()) for slowdown in (4, 20)}
    strict = _cell((64, 6, 20), 4, 0.001, apart=0.5, settings=JudgingSettings(smallest_slowdown_percent=0.2))

    with capsys.disabled():
        print(_head("judge: sigma 0.1 %"))
        print(_row("4 x 0.1 %, smallest 1 %", default[4]), _row("20 x 0.1 %, smallest 1 %", default[20]), sep="\n")
        print(_row("4 x 0.1 %, smallest 0.2 %", strict))
    assert _percent(default[4], "bad", "fail") == 0
    assert _percent(default[20], "bad", "fail") >= MIN_RECALL_PERCENT
    assert _percent(strict, "bad", "fail") >= MIN_RECALL_PERCENT
    assert max(_percent(counted, "healthy", "fail") for counted in (*default.values(), strict)) <= MAX_FALSE_PERCENT


def test_a_large_spread_of_healthy_hosts_causes_no_false_failures(capsys: pytest.CaptureFixture[str]) -> None:
    """Healthy hosts differ by sigma or 2 sigma. At most 1 % of them fail, and slowdowns of 8 times the spread are found."""
    lines = [_head("judge: sigma 1 %, healthy hosts further apart")]
    false_flags, recall = [], []
    for apart in (1.0, 2.0):
        for slowdown in (4, 6, round(8 * apart)):
            counted = _cell((256, 13, 12), slowdown, 0.01, apart=apart, settings=JudgingSettings())
            lines.append(_row(f"{slowdown} x 1 %, apart {apart:g} %", counted))
            false_flags.append(_percent(counted, "healthy", "fail"))
        recall.append(_percent(counted, "bad", "fail"))

    with capsys.disabled():
        print("\n".join(lines))
    assert max(false_flags) <= MAX_FALSE_PERCENT
    assert min(recall) >= MIN_RECALL_PERCENT


def test_many_devices_and_series_give_correct_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    """Among 1,280 and more comparisons, healthy hosts rarely fail or stay unknown, and one slow device of eight is found.

    The slowdown is a multiple of the standard deviation of a healthy device: its error and the spread of healthy devices.
    """
    lines = [_head("judge: hosts of 8 devices in 20 series, with a floor; a planted host has one slow device")]
    rows = [
        (hosts, slowdown, *_many(hosts, bad if slowdown else 0, slowdown, fleets, noise=noise, apart=apart))
        for noise, apart in MANY_SPREADS
        for hosts, bad, fleets in MANY_FLEETS
        for slowdown in MANY_SLOWDOWNS
    ]
    lines += [_row(name, counted) for *_, name, counted in rows]

    with capsys.disabled():
        print("\n".join(lines))
    total: Counter[str] = sum((counted for *_, counted in rows), Counter())
    assert _percent(total, "healthy", "fail") <= MAX_FALSE_PERCENT
    assert _percent(total, "healthy", "unknown") <= MAX_UNKNOWN_PERCENT
    assert not total["bad pass"]
    guaranteed = [counted for hosts, slowdown, _, counted in rows if hosts >= MIN_HOSTS and slowdown >= MIN_SLOWDOWN]
    assert min(_percent(counted, "bad", "fail") for counted in guaranteed) >= MIN_RECALL_PERCENT


def _many(hosts: int, bad: int, slowdown: float, fleets: int, *, noise: float, apart: float) -> tuple[str, Counter[str]]:
    """Bench fleets of many devices and series; return the row's name and the counted verdicts."""
    sigma = math.hypot(apart, MEDIAN_ERROR * noise / math.sqrt(20))
    counted: Counter[str] = Counter()
    for seed in range(fleets):
        rng = random.Random(f"{hosts} {bad} {slowdown} {noise} {apart} {seed}")  # noqa: S311 - no secret
        fleet = Devices(rng, hosts, devices=8, series=20, bad=bad, slowdown=slowdown * sigma, noise=noise, apart=apart)
        counted.update(shares(fleet, fleet.bench(JudgingSettings(), load_floors()).hosts))
    name = f"{slowdown:g} x {100 * sigma:.1f} %, noise {100 * noise:g} %, {hosts} ({bad})"
    return name, counted


def test_a_large_fleet_is_evaluated_in_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """655,360 results of 20 samples (4,096 nodes, 8 devices, 20 series) take at most a minute of processor time."""
    rng = random.Random(1)  # noqa: S311 - no secret
    series = [
        Series("gemm", "tflop_per_s", canonical({"m": 4096 + 128 * number, "n": 8192, "k": 8192, "dtype": "bf16"}), 1)
        for number in range(SERIES)
    ]
    samples = [tuple(700 * (1 + rng.gauss(0, 0.005)) for _ in range(20)) for _ in range(997)]
    results = [
        result(
            f"node{node:04}", samples[rng.randrange(997)], device=str(device), series=one_series, model="AMD Instinct MI300X", stack=STACK
        )
        for node in range(NODES)
        for device in range(DEVICES)
        for one_series in series
    ]

    started = time.process_time()
    evaluation = evaluate_results(results, floors=load_floors(), history=History(), hosts=[f"node{node:04}" for node in range(NODES)])
    seconds = time.process_time() - started

    with capsys.disabled():
        print(f"\njudge, {NODES:,} nodes x {DEVICES} devices x {SERIES} series of 20 samples, {os.cpu_count()} cores")
        print(f"  processor time: {seconds:.1f} s, {1e6 * seconds / len(results):.0f} us per result")
        print(f"  hosts: {dict(Counter(evaluation.hosts.values()))}, to repeat: {len(evaluation.reruns)}")
    assert len(evaluation.verdicts) == len(evaluation.values) == NODES * DEVICES * SERIES
    assert seconds <= MAX_SECONDS
