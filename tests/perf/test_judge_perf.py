"""How well synthetic fleets with planted faults are judged, and how fast a large one.

`sigma` is the relative standard deviation of one host's median over its 20 repeats. Healthy hosts differ by half of it. A planted host is
slower by a multiple of sigma. Judging asks for more repeats where it cannot tell, and gets them, as a bench does.
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

LEAST_RECALL_PERCENT, MOST_FALSE_PERCENT = 95.0, 1.0
SIGMAS_PERCENT = (0.5, 1.0, 2.0)
# Hosts, planted hosts, fleets: 6 %, 3 %, 10 %, 1 % and 10 % bad. Below 16 hosts there are too few peers to promise anything.
FLEETS = ((6, 1, 20), (8, 1, 20), (16, 1, 80), (32, 1, 60), (64, 6, 15), (256, 3, 16), (256, 26, 4), (1024, 102, 1))
PROMISED_HOSTS = 16
SLOWDOWNS = (0, 1, 2, 3, 4, 6)
PROMISED_SLOWDOWN = 4

# Noise of a sample, and how far healthy devices lie apart: little, as much as makes peers blind now and then, and always.
MANY_SPREADS = ((0.01, 0.005), (0.002, 0.015), (0.002, 0.03))
MANY_FLEETS = ((8, 1, 5), (32, 3, 2))
MANY_SLOWDOWNS = (0, 4, 6)
# So many healthy hosts may wait for a clearer answer: of some thousand values one lies far out by chance, and at 3 % beyond what matters.
MOST_WAITING_PERCENT = 10.0

NODES, DEVICES, SERIES = 4096, 8, 20
MOST_SECONDS = 60.0


def _percent(count: Counter[str], kind: str, word: str) -> float:
    total = sum(number for name, number in count.items() if name.startswith(kind))
    return 100 * count[f"{kind} {word}"] / total if total else 0.0


def _cell(size: tuple[int, int, int], slowdown: int, sigma: float, *, apart: float, settings: JudgingSettings) -> Counter[str]:
    hosts, bad, fleets = size
    counted: Counter[str] = Counter()
    for seed in range(fleets):
        # A text as seed: the same on every machine, and another fleet for every cell.
        rng = random.Random(f"{hosts} {bad} {slowdown} {sigma} {apart} {seed}")  # noqa: S311 - a fleet, no secret
        fleet = Fleet(rng, hosts, bad=bad if slowdown else 0, slowdown=slowdown * sigma, sigma=sigma, apart=apart)
        counted.update(shares(fleet, fleet.bench(settings)[1].hosts))
    return counted


def _row(name: str, counted: Counter[str]) -> str:
    kinds = [(kind, word) for kind in ("bad", "healthy") for word in ("fail", "unknown", "pass")]
    return f"  {name:<34}" + "".join(f"{_percent(counted, kind, word):>10.2f}" for kind, word in kinds)


def _head(title: str) -> str:
    words = "".join(f"{word:>10}" for word in ("fail", "unknown", "pass") * 2)
    return f"\n{title}\n  {'':<34}{'planted hosts (%)':>30}{'healthy hosts (%)':>30}\n  {'slowdown x sigma, hosts (planted)':<34}{words}"


def test_planted_faults_are_found_and_healthy_hosts_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """From 16 hosts and 4 sigma on, 95 % of the planted hosts fail; of healthy hosts never more than 1 %, whatever is planted."""
    lines: list[str] = []
    found: list[tuple[str, int, int, float, float]] = []
    for sigma in SIGMAS_PERCENT:
        lines.append(_head(f"judge: sigma {sigma:g} %, healthy hosts differ by {sigma / 2:g} %, up to 3 rounds of measuring again"))
        for size in FLEETS:
            for slowdown in SLOWDOWNS:
                counted = _cell(size, slowdown, sigma / 100, apart=0.5, settings=JudgingSettings())
                name = f"{slowdown} x {sigma:g} % = {slowdown * sigma:.1f} %, {size[0]} ({size[1] if slowdown else 0})"
                lines.append(_row(name, counted))
                found.append((name, size[0], slowdown, _percent(counted, "bad", "fail"), _percent(counted, "healthy", "fail")))

    with capsys.disabled():
        print("\n".join(lines))
    missed = [each for each in found if each[1] >= PROMISED_HOSTS and each[2] >= PROMISED_SLOWDOWN and each[3] < LEAST_RECALL_PERCENT]
    assert not missed
    assert not [each for each in found if each[4] > MOST_FALSE_PERCENT]


def test_a_quiet_benchmark_finds_what_matters_and_no_less(capsys: pytest.CaptureFixture[str]) -> None:
    """With sigma 0.1 % a slowdown of 4 sigma (0.4 %) does not matter, and 2 % fails; told that 0.2 % matters, 0.4 % fails as well."""
    usual = {slowdown: _cell((64, 6, 20), slowdown, 0.001, apart=0.5, settings=JudgingSettings()) for slowdown in (4, 20)}
    told = _cell((64, 6, 20), 4, 0.001, apart=0.5, settings=JudgingSettings(smallest_slowdown_percent=0.2))

    with capsys.disabled():
        print(_head("judge: sigma 0.1 %"))
        print(_row("4 x 0.1 %, 1 % matters", usual[4]), _row("20 x 0.1 %, 1 % matters", usual[20]), sep="\n")
        print(_row("4 x 0.1 %, 0.2 % matters", told))
    assert _percent(usual[4], "bad", "fail") == 0
    assert _percent(usual[20], "bad", "fail") >= LEAST_RECALL_PERCENT
    assert _percent(told, "bad", "fail") >= LEAST_RECALL_PERCENT
    assert max(_percent(each, "healthy", "fail") for each in (*usual.values(), told)) <= MOST_FALSE_PERCENT


def test_where_healthy_hosts_differ_more_than_they_are_measured_false_flags_stay_rare(capsys: pytest.CaptureFixture[str]) -> None:
    """Healthy hosts as far apart as sigma, or twice: fewer of 4 sigma are found, no more healthy ones fail; 8 times that is found."""
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
    assert max(false_flags) <= MOST_FALSE_PERCENT
    assert min(recall) >= LEAST_RECALL_PERCENT


def test_many_devices_and_series_neither_accuse_healthy_hosts_nor_hide_slow_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 1,280 and more comparisons no healthy host fails by chance, one slow device of eight is found, and hardly anybody waits.

    What is planted counts in what one value of a healthy device scatters by: its error and how far healthy devices lie apart.
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
    whole: Counter[str] = sum((counted for *_, counted in rows), Counter())
    assert _percent(whole, "healthy", "fail") <= MOST_FALSE_PERCENT
    assert _percent(whole, "healthy", "unknown") <= MOST_WAITING_PERCENT
    assert not whole["bad pass"]
    promised = [counted for hosts, slowdown, _, counted in rows if hosts >= PROMISED_HOSTS and slowdown >= PROMISED_SLOWDOWN]
    assert min(_percent(counted, "bad", "fail") for counted in promised) >= LEAST_RECALL_PERCENT


def _many(hosts: int, bad: int, slowdown: float, fleets: int, *, noise: float, apart: float) -> tuple[str, Counter[str]]:
    """Bench fleets of many devices and series; return the row's name and who ended how."""
    sigma = math.hypot(apart, MEDIAN_ERROR * noise / math.sqrt(20))
    counted: Counter[str] = Counter()
    for seed in range(fleets):
        rng = random.Random(f"{hosts} {bad} {slowdown} {noise} {apart} {seed}")  # noqa: S311 - a fleet, no secret
        fleet = Devices(rng, hosts, devices=8, series=20, bad=bad, slowdown=slowdown * sigma, noise=noise, apart=apart)
        counted.update(shares(fleet, fleet.bench(JudgingSettings(), load_floors()).hosts))
    name = f"{slowdown:g} x {100 * sigma:.1f} %, noise {100 * noise:g} %, {hosts} ({bad})"
    return name, counted


def test_a_large_fleet_is_judged_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """4,096 nodes of 8 devices with 20 series each, 655,360 results of 20 samples, are judged in a minute of processor time."""
    rng = random.Random(1)  # noqa: S311 - the same
    series = [
        Series("gemm", "tflop_per_s", canonical({"m": 4096 + 128 * number, "n": 8192, "k": 8192, "dtype": "bf16"}), 1)
        for number in range(SERIES)
    ]
    drawn = [tuple(700 * (1 + rng.gauss(0, 0.005)) for _ in range(20)) for _ in range(997)]
    results = [
        result(f"node{node:04}", drawn[rng.randrange(997)], device=str(device), series=each, model="AMD Instinct MI300X", stack=STACK)
        for node in range(NODES)
        for device in range(DEVICES)
        for each in series
    ]

    started = time.process_time()
    evaluation = evaluate_results(results, floors=load_floors(), history=History(), hosts=[f"node{node:04}" for node in range(NODES)])
    seconds = time.process_time() - started

    with capsys.disabled():
        print(f"\njudge, {NODES:,} nodes x {DEVICES} devices x {SERIES} series of 20 samples, {os.cpu_count()} cores")
        print(f"  processor time: {seconds:.1f} s, {1e6 * seconds / len(results):.0f} us a result")
        print(f"  hosts: {dict(Counter(evaluation.hosts.values()))}, to measure again: {len(evaluation.reruns)}")
    assert len(evaluation.verdicts) == len(evaluation.values) == NODES * DEVICES * SERIES
    assert seconds <= MOST_SECONDS
