"""Measure all-reduce between all ranks: time and bus bandwidth for a range of sizes.

    torchrun … workloads/bench/allreduce.py [--smallest-mib 1 --largest-mib 1024]

Bus bandwidth is bytes / time * 2*(n-1)/n, which does not depend on the number of ranks:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md (AllReduce).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

if not __package__:
    # Started by path: Python put this folder in front, whose names are no modules of their own; the root is wanted.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist

from workloads.bench._options import parse_options
from workloads.common.device import device_name, synchronise
from workloads.common.process_group import Group, process_group
from workloads.common.results import append_result, spread, surroundings

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class AllreduceOptions:
    """What is measured."""

    smallest_mib: int = field(default=1, metadata={"help": "first size (MiB)"})
    largest_mib: int = field(default=256, metadata={"help": "last size (MiB); each is twice the one before"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda (ROCm as well)", "choices": ("auto", "cpu", "cuda")})
    warm_up: int = field(default=5, metadata={"help": "rounds before the clock starts"})
    steps: int = field(default=20, metadata={"help": "rounds that are timed"})
    timeout_s: float = field(default=300.0, metadata={"help": "longest that a round may take (s)"})


def measure(options: AllreduceOptions, group: Group, size_mib: int) -> list[float]:
    """Return the time of each round, in seconds, after checking one result."""
    values = torch.ones(size_mib * _MIB // 4, dtype=torch.float32, device=group.device) * (group.rank + 1)
    dist.all_reduce(values)
    expected = group.world_size * (group.world_size + 1) / 2
    if not bool((values == expected).all()):
        sys.exit(
            f"allreduce: rank {group.rank}: the sum is wrong at {size_mib} MiB\n  fix: look for a link or device that errs; NCCL_DEBUG=INFO"
        )
    values.zero_()
    times = []
    for _ in range(options.warm_up + options.steps):
        dist.barrier()
        synchronise(group.device)
        started = time.perf_counter()
        dist.all_reduce(values)
        synchronise(group.device)
        times.append(time.perf_counter() - started)
    return times[options.warm_up :]


def main(argv: list[str]) -> int:
    """Measure every size; rank 0 prints and keeps the results; return the exit code."""
    options = parse_options(AllreduceOptions, "Measure all-reduce.", argv)
    with process_group(device=options.device, tensor=1, timeout_s=options.timeout_s) as group:
        size_mib = options.smallest_mib
        while size_mib <= options.largest_mib:
            times_s = measure(options, group, size_mib)
            if group.is_first:
                _keep(options, group, size_mib, times_s)
            size_mib *= 2
    return 0


def _keep(options: AllreduceOptions, group: Group, size_mib: int, times_s: list[float]) -> None:
    ranks = group.world_size
    bus_gb_per_s = spread([size_mib * _MIB / seconds * 2 * (ranks - 1) / ranks / 1e9 for seconds in times_s])
    result = {
        "benchmark": "allreduce",
        "options": asdict(options),
        "size_mib": size_mib,
        "ranks": ranks,
        "device": device_name(group.device),
        "time_s": spread(times_s),
        "bus_gb_per_s": bus_gb_per_s,
        **surroundings(),
    }
    print(f"allreduce {size_mib} MiB, {ranks} ranks: median {bus_gb_per_s['median']:.3f} GB/s on the bus, of {bus_gb_per_s['n']}")
    append_result(Path(os.environ.get("RUN_DIR", ".")), result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
