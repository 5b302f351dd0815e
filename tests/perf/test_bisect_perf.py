"""Measures the runs, the wrong verdicts and the processor time of bisections, on simulated fabrics with known faults.

A flaky host fails half of its runs. Noise inverts one result in a hundred.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import NamedTuple

import pytest

from tests.unit.bench_fabric_rig import draw_fabric, tally

pytestmark = pytest.mark.perf

CONSTANT_RUNS = 24
# Additional runs for bad paths, flaky hosts, noise and size limits.
RUNS_PER_PATH, RUNS_PER_FLAKY, RUNS_FOR_SIZE = 3, 12, 3
# Wrong verdicts on healthy hosts or paths in a hundred searches with flaky hosts and noise.
MAX_FALSE_IN_100, MAX_SUSPECT_IN_100 = 0.1, 1.0
MAX_SECONDS = 60.0


class Row(NamedTuple):
    """Fabrics of the same size with the same numbers of faults."""

    size: int
    fabrics: int
    bad: int = 0
    paths: int = 0
    flaky: int = 0
    noise: float = 0.0
    largest: int | None = None


BAD_HOSTS = [
    *(Row(size, 60, bad=bad) for size in (8, 16, 64) for bad in sorted({0, 1, size // 10, size // 4})),
    *(Row(256, 20, bad=bad) for bad in (1, 3, 26, 102)),
    *(Row(1024, 4, bad=bad) for bad in (1, 10, 102)),
    *(Row(4096, fabrics, bad=bad) for fabrics, bad in ((8, 0), (8, 1), (4, 8), (1, 41), (1, 410))),
]
PATHS = [Row(size, fabrics, bad=bad, paths=1) for size, fabrics in ((8, 60), (64, 60), (512, 10), (4096, 3)) for bad in (0, 1)]
# Fabrics on which groups above a size fail, independently of their hosts.
LARGE = [
    *(Row(64, 30, bad=bad, largest=40) for bad in (0, 1, 6)),
    *(Row(256, 10, bad=bad, largest=60) for bad in (0, 3, 26)),
    *(Row(4096, 2, bad=bad, largest=1000) for bad in (0, 8)),
]
FLAKY = [
    *(Row(size, fabrics, flaky=1, noise=noise) for size, fabrics in ((8, 300), (64, 100), (512, 20), (4096, 3)) for noise in (0.0, 0.01)),
    *(Row(size, fabrics, bad=1, flaky=1) for size, fabrics in ((8, 300), (64, 100), (512, 20), (4096, 3))),
    *(Row(size, fabrics, bad=1, noise=0.01) for size, fabrics in ((8, 300), (64, 100), (512, 20), (4096, 3))),
    *(Row(size, fabrics, bad=max(1, size // 50), paths=1, flaky=1, noise=0.01) for size, fabrics in ((16, 300), (64, 100), (512, 10))),
]


def _measure(row: Row) -> tuple[Counter[str], list[int]]:
    counted: Counter[str] = Counter()
    runs = []
    for seed in range(row.fabrics):
        fabric = draw_fabric(f"{row} {seed}", row.size, bad=row.bad, paths=row.paths, flaky=row.flaky, noise=row.noise, largest=row.largest)
        found = fabric.bisect(seed)
        counted.update(tally(fabric, found))
        runs.append(found.runs)
    return counted, runs


def _share(counted: Counter[str], kind: str, *states: str) -> float:
    total = sum(count for name, count in counted.items() if name.startswith(kind))
    return 100 * sum(counted[f"{kind} {state}"] for state in states) / total if total else 0.0


def _print_head(title: str) -> None:
    print(f"\n{title}")
    print(
        "  hosts  bad paths flaky noise | runs mean worst  2 b log2 N | bad found | flaky not | good: fail  unknown (%) | path: right wrong"
    )
    print("                               |                             |           |    passed |                         |")


def _print_row(row: Row, counted: Counter[str], runs: list[int]) -> None:
    flaky = _share(counted, "flaky", "suspect", "unsteady", "unknown", "fail")
    unknown = _share(counted, "good", "unknown", "suspect", "unsteady")
    print(
        f"  {row.size:>5} {row.bad:>4} {row.paths:>5} {row.flaky:>5} {row.noise:>5} | {sum(runs) / len(runs):>9.0f} {max(runs):>5} "
        f"{2 * row.bad * math.log2(row.size):>11.0f} | {_share(counted, 'bad', 'fail'):>7.1f} % | {flaky:>7.1f} % |"
        f" {_share(counted, 'good', 'fail'):>10.3f} {unknown:>12.2f} | {counted['path right']:>11} {counted['path wrong']:>5}"
    )


def test_bad_hosts() -> None:
    """All bad hosts and no others fail, within 2 b log2(N) runs and a constant."""
    _print_head("bad hosts")
    for row in BAD_HOSTS:
        counted, runs = _measure(row)
        _print_row(row, counted, runs)

        assert counted == Counter({"bad fail": row.bad * row.fabrics, "good pass": (row.size - row.bad) * row.fabrics}) + Counter()
        assert max(runs) <= 2 * row.bad * math.log2(row.size) + CONSTANT_RUNS


def test_bad_paths() -> None:
    """The bad path is found, and neither of its ends fails."""
    _print_head("bad paths")
    for row in PATHS:
        counted, runs = _measure(row)
        _print_row(row, counted, runs)
        extra = RUNS_PER_PATH * math.log2(row.size)

        assert counted["path right"] == row.fabrics
        assert set(counted) <= {"bad fail", "good pass", "end pass", "path right"}
        assert max(runs) <= 2 * row.bad * math.log2(row.size) + CONSTANT_RUNS + extra


def test_large_groups_that_always_fail() -> None:
    """All bad hosts and no others fail. Finding the size limit takes some additional runs."""
    _print_head("large groups that always fail (more than 40 of 64, 60 of 256, 1000 of 4096)")
    for row in LARGE:
        counted, runs = _measure(row)
        _print_row(row, counted, runs)

        assert counted == Counter({"bad fail": row.bad * row.fabrics, "good pass": (row.size - row.bad) * row.fabrics}) + Counter()
        assert max(runs) <= 2 * row.bad * math.log2(row.size) + CONSTANT_RUNS + RUNS_FOR_SIZE * math.log2(row.size)


def test_flaky_hosts_and_noise() -> None:
    """With flaky hosts and noise, healthy hosts may be unknown but rarely fail."""
    _print_head("flaky hosts and noise")
    total: Counter[str] = Counter()
    for row in FLAKY:
        counted, runs = _measure(row)
        _print_row(row, counted, runs)
        total += counted + Counter({"fabrics": row.fabrics})

        assert max(runs) <= 2 * row.bad * math.log2(row.size) + CONSTANT_RUNS + RUNS_PER_FLAKY * math.log2(row.size) * 3
    false, suspect = (100 * sum(total[f"{kind} {state}"] for kind in ("good", "end")) / total["fabrics"] for state in ("fail", "suspect"))
    suspect_good, paths = 100 * total["good suspect"] / total["fabrics"], 100 * total["path wrong"] / total["fabrics"]
    print(f"\n  in 100 searches: {false:.2f} healthy hosts fail, {suspect_good:.2f} are suspect ({suspect:.2f} with the ends of bad paths)")
    print(f"  and {paths:.2f} good paths are reported; of 100 flaky hosts {_share(total, 'flaky', 'pass'):.1f} pass")

    assert false <= MAX_FALSE_IN_100
    assert suspect_good <= MAX_SUSPECT_IN_100
    assert paths <= MAX_SUSPECT_IN_100
    assert _share(total, "bad", "fail") >= 75
    assert _share(total, "flaky", "pass") <= 20


def test_the_search_on_a_large_fabric_takes_little_processor_time() -> None:
    """The search over 4,096 hosts with 8 bad ones takes less than MAX_SECONDS of processor time."""
    before = time.process_time()
    _, runs = _measure(Row(4096, 1, bad=8))
    cpu_s = time.process_time() - before
    print(f"\n  4096 hosts, 8 bad: {runs[0]} runs, {cpu_s:.2f} s of processor time")

    assert cpu_s < MAX_SECONDS
