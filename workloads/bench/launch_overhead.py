"""Measure the overhead of starting an operation: microseconds for an operation with negligible arithmetic.

    torchrun … workloads/bench/launch_overhead.py

`queued`: start many operations, then synchronize; time per operation: how fast this host can start operations. `waited`: synchronize after
each operation: the round trip to the GPU. On a CPU, operations are synchronous, so only `queued` is measured: the cost of torch's dispatch.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.bench._options import DEVICE, REPEATS, TIMEOUT_S, WARM_UP
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.device import synchronise

_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options."""

    operations: int = field(default=500, metadata={"help": "operations per sample"})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=100, metadata=WARM_UP)
    repeats: int = field(default=50, metadata=REPEATS)
    timeout_s: float = field(default=120.0, metadata=TIMEOUT_S)


def measure(options: LaunchOptions, run: Run) -> None:
    """Measure both ways. The final sum verifies that every operation was executed."""
    for way in ("queued", "waited") if run.device.type == "cuda" else ("queued",):
        with run.series("time_us", "us", "lower", {"operation": "add", "way": way, "elements": _ELEMENTS}) as series:
            values = torch.zeros(_ELEMENTS, device=run.device)
            done, samples = 0, []
            for number in range(options.repeats + 1):
                count = options.operations if number else options.warm_up
                seconds = _sample_s(values, count, waited=way == "waited", device=run.device)
                done += count
                if number:
                    samples.append(seconds / count * 1e6)
            series.done(samples, correct=bool((values == done).all()))


def _sample_s(values: torch.Tensor, count: int, *, waited: bool, device: torch.device) -> float:
    """Return the seconds of `count` operations, each of which adds one."""
    synchronise(device)
    started = time.perf_counter()
    for _ in range(count):
        values.add_(1)
        if waited:
            synchronise(device)
    synchronise(device)
    return time.perf_counter() - started


BENCHMARK = Benchmark("launch_overhead", "Measure the cost of starting an operation.", LaunchOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
