"""Measure memory bandwidth: GB/s per GPU (or CPU) for copy, scale and triad of arrays that are much larger than the caches.

    torchrun … workloads/bench/memory_bandwidth.py [--array-mib 1024]

Operations and byte counts follow STREAM (https://www.cs.virginia.edu/stream/ref.html, "Counting Bytes and FLOPS"): each read or written
element counts once; write-allocate traffic of the caches does not count.
copy c = a, scale b = s c: 2 arrays; triad a = b + s c: 3 arrays.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.bench._options import DEVICE, REPEATS, TIMEOUT_S, WARM_UP
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.device import cold_bytes
from workloads.common.timing import time_samples

_MIB = 2**20
_FACTOR = 0.5
_ARRAYS = {"copy": 2, "scale": 2, "triad": 3}


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The options."""

    array_mib: int = field(default=0, metadata={"help": "size of each of the three arrays (MiB); 0: four times the last-level cache"})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=3, metadata=WARM_UP)
    repeats: int = field(default=30, metadata=REPEATS)
    timeout_s: float = field(default=300.0, metadata=TIMEOUT_S)


def measure(options: MemoryOptions, run: Run) -> None:
    """Measure each operation. STREAM requires arrays of at least four times the cache size; `cold_bytes` is twice the cache size."""
    size = options.array_mib * _MIB or 2 * cold_bytes(run.device)
    for operation, arrays in _ARRAYS.items():
        with run.series("gb_per_s", "GB/s", "higher", {"operation": operation, "bytes": size, "dtype": "fp32"}) as series:
            a, b, c = (torch.full((size // 4,), float(number), device=run.device) for number in (1, 2, 3))

            def once(_number: int, a: torch.Tensor = a, b: torch.Tensor = b, c: torch.Tensor = c, operation: str = operation) -> object:
                if operation == "copy":
                    return c.copy_(a)
                if operation == "scale":
                    return torch.mul(c, _FACTOR, out=b)
                return torch.add(b, c, alpha=_FACTOR, out=a)

            times_s = time_samples(once, run.device, warm_up=options.warm_up, repeats=options.repeats)
            written, expected = {"copy": (c, 1.0), "scale": (b, 3 * _FACTOR), "triad": (a, 2 + 3 * _FACTOR)}[operation]
            series.done([arrays * size / seconds / 1e9 for seconds in times_s], correct=bool((written == expected).all()))


BENCHMARK = Benchmark("memory_bandwidth", "Measure memory bandwidth.", MemoryOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
