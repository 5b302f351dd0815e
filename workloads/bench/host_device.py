"""Measure copies between host and device: GB/s of each GPU in both directions, from locked (pinned) and from ordinary (pageable) memory.

    torchrun … workloads/bench/host_device.py [--size-mib 256]

Bytes of the array over the time of its copy. A CPU has no such path: there a message says so, and nothing is measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:
    # Started by path: Python put this folder in front, whose names are no modules of their own; the root is wanted.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.bench._options import DEVICE, REPEATS, TIMEOUT_S, WARM_UP
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.timing import time_samples

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What is measured."""

    size_mib: int = field(default=256, metadata={"help": "size of a copy (MiB)"})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=3, metadata=WARM_UP)
    repeats: int = field(default=30, metadata=REPEATS)
    timeout_s: float = field(default=300.0, metadata=TIMEOUT_S)


def measure(options: CopyOptions, run: Run) -> None:
    """Measure both directions with both kinds of memory."""
    if run.device.type == "cpu":
        print("host_device: a CPU has no path between host and device: nothing is measured")
        return
    size = options.size_mib * _MIB
    for memory in ("pinned", "pageable"):
        for direction in ("host_to_device", "device_to_host"):
            with run.series("gb_per_s", "GB/s", "higher", {"direction": direction, "memory": memory, "bytes": size}) as series:
                host = torch.empty(size, dtype=torch.uint8, pin_memory=memory == "pinned").random_()
                device = torch.randint(256, (size,), dtype=torch.uint8, device=run.device)
                source, target = (host, device) if direction == "host_to_device" else (device, host)

                def copy(_number: int, source: torch.Tensor = source, target: torch.Tensor = target) -> object:
                    return target.copy_(source, non_blocking=True)

                times_s = time_samples(copy, run.device, warm_up=options.warm_up, repeats=options.repeats)
                # Compared on the host: what came back over the same path would prove nothing of the direction.
                correct = bool((host == device.cpu()).all())
                series.done([size / seconds / 1e9 for seconds in times_s], correct=correct)


BENCHMARK = Benchmark("host_device", "Measure copies between host and device.", CopyOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
