"""Measure copies between host and device: GB/s per GPU in both directions, with pinned and with pageable host memory.

    torchrun … workloads/bench/host_device.py [--size-mib 256]

The result is the size of the array over the time of its copy. The GPUs of a host are measured one after another, because GPUs on the same
link to the processor share its bandwidth. On a CPU nothing is measured.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.bench._options import DEVICE, REPEATS, TIMEOUT_S, WARM_UP
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.timing import time_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.common.results import Sizes

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options."""

    size_mib: int = field(default=256, metadata={"help": "size of a copy (MiB)"})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=3, metadata=WARM_UP)
    repeats: int = field(default=30, metadata=REPEATS)
    timeout_s: float = field(default=300.0, metadata=TIMEOUT_S)


@contextmanager
def turn(folder: str = "") -> Iterator[None]:
    """Hold a lock, so that only one process of this user copies on this host. The lock is released if the process dies."""
    path = Path(folder or tempfile.gettempdir()) / f"primus-host-device-{os.getuid()}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def measure(options: CopyOptions, run: Run) -> None:
    """Measure both directions with both kinds of memory."""
    if run.device.type == "cpu":
        print("host_device: skipped, because the device is a CPU")
        return
    size = options.size_mib * _MIB
    for memory in ("pinned", "pageable"):
        for direction in ("host_to_device", "device_to_host"):
            sizes: Sizes = {"direction": direction, "memory": memory, "bytes": size, "at_once": 1}
            with run.series("gb_per_s", "GB/s", "higher", sizes) as series:
                host = torch.empty(size, dtype=torch.uint8, pin_memory=memory == "pinned").random_()
                device = torch.randint(256, (size,), dtype=torch.uint8, device=run.device)
                source, target = (host, device) if direction == "host_to_device" else (device, host)

                def copy(_number: int, source: torch.Tensor = source, target: torch.Tensor = target) -> object:
                    return target.copy_(source, non_blocking=True)

                with turn():
                    times_s = time_samples(copy, run.device, warm_up=options.warm_up, repeats=options.repeats)
                    # Compare on the host: a copy back over the same path would not verify one direction. This copies too, so it is within
                    # the turn.
                    correct = bool((host == device.cpu()).all())
                series.done([size / seconds / 1e9 for seconds in times_s], correct=correct)


BENCHMARK = Benchmark("host_device", "Measure copies between host and device.", CopyOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
