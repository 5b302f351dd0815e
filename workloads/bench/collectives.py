"""Measure the collectives all-reduce, all-gather, reduce-scatter and all-to-all over all ranks, for a range of sizes.

    torchrun … workloads/bench/collectives.py [--collectives all_reduce --largest-kib 1048576]

The definitions follow nccl-tests: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. The size is that of a rank's largest
buffer (the receive buffer of all-gather, the send buffer of reduce-scatter and all-to-all). Algorithm bandwidth is size / time. Bus
bandwidth is algorithm bandwidth times a factor that makes it comparable with the speed of a link for any number of ranks. The time of a
round is that of the slowest rank, because a job waits for it (nccl-tests reports the mean, except with `-a 3`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist

from workloads.bench._options import DEVICE, REPEATS, TIMEOUT_S, WARM_UP
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.errors import SettingsError
from workloads.common.process_group import Group, process_group, world_size
from workloads.common.timing import time_samples
from workloads.common.torch_release import gather, scatter_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.common.results import Sizes

_KIB = 1024
_ELEMENT = 4  # bytes of fp32
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True)
class CollectivesOptions:
    """The options."""

    collectives: tuple[str, ...] = field(default=COLLECTIVES, metadata={"help": f"some of {', '.join(COLLECTIVES)}", "words": COLLECTIVES})
    smallest_kib: int = field(default=0, metadata={"help": "first size (KiB); 0: 1024 on GPUs, 64 on CPUs"})
    largest_kib: int = field(
        default=0, metadata={"help": "last size (KiB); 0: 1048576 (1 GiB) on GPUs, 4096 on CPUs", "not_below": "smallest_kib"}
    )
    factor: int = field(default=4, metadata={"help": "ratio of consecutive sizes"})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=5, metadata=WARM_UP)
    repeats: int = field(default=20, metadata=REPEATS)
    timeout_s: float = field(default=600.0, metadata=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on the buffers of this rank. `operation` is timed; `check` runs it once and verifies the result."""

    operation: Callable[[int], object]
    check: Callable[[], bool]
    bus_factor: float


def measure(options: CollectivesOptions, run: Run) -> None:
    """Measure every collective at every size."""
    unknown = [name for name in options.collectives if name not in COLLECTIVES]
    if unknown or options.factor < 2:
        what = f"--collectives {unknown[0]}: no such collective" if unknown else f"--factor is {options.factor}"
        raise SettingsError(what, fix=f"choose from: {', '.join(COLLECTIVES)}" if unknown else "give 2 or more")
    if world_size() < 2:
        print("collectives: skipped, because there is one rank only; start at least two (--nproc, --nnodes)")
        return
    with process_group(device=options.device, timeout_s=options.timeout_s) as group:
        for name in options.collectives:
            for size in _sizes(options, group):
                _measure_size(options, run, group, name, size)


def _measure_size(options: CollectivesOptions, run: Run, group: Group, name: str, size: int) -> None:
    """Measure one collective at one size, and write algorithm and bus bandwidth."""
    sizes: Sizes = {"collective": name, "bytes": size, "dtype": "fp32", **_hosts()}
    with run.series("bus_gb_per_s", "GB/s", "higher", sizes) as bus:
        collective = _prepare(name, size, group)
        correct = _everywhere(collective.check(), group)
        rank_s = time_samples(
            collective.operation,
            group.device,
            warm_up=options.warm_up,
            repeats=options.repeats,
            combine=lambda seconds: slowest([seconds], group)[0],
            before=dist.barrier,
        )
        correct = _everywhere(collective.check(), group) and correct
        algorithm = [size / seconds / 1e9 for seconds in slowest(rank_s, group)]
        bus.done([speed * collective.bus_factor for speed in algorithm], correct=correct)
    with run.series("alg_gb_per_s", "GB/s", "higher", sizes) as series:
        series.started = bus.started
        series.done(algorithm, correct=correct)


def _hosts() -> Sizes:
    """Return the number of hosts if there are several: these are other series than with the same ranks on one host.

    torchrun sets it: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables (one agent per host).
    """
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    return {"hosts": hosts} if hosts > 1 else {}


def slowest(seconds: list[float], group: Group) -> list[float]:
    """Return the maximum of each time over all ranks."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group.background)
    return [float(value) for value in times]


def _everywhere(correct: bool, group: Group) -> bool:  # noqa: FBT001 - a result, not an option
    """Return whether the result is correct on every rank; print a message on ranks where it is not."""
    if not correct:
        print(f"collectives: rank {group.rank} got a wrong result", file=sys.stderr, flush=True)
    all_correct = torch.tensor([int(correct)])
    dist.all_reduce(all_correct, op=dist.ReduceOp.MIN, group=group.background)
    return bool(all_correct.item())


def _sizes(options: CollectivesOptions, group: Group) -> list[int]:
    """Return the sizes in bytes. Each rank's part is a whole number of elements, as in nccl-tests."""
    gpu = group.device.type == "cuda"
    size_kib, last_kib = options.smallest_kib or (1024 if gpu else 64), options.largest_kib or (2**20 if gpu else 4096)
    sizes = []
    while size_kib <= last_kib:
        part = group.world_size * _ELEMENT
        sizes.append(max(part, size_kib * _KIB // part * part))
        size_kib *= options.factor
    return sizes


def _prepare(name: str, size: int, group: Group) -> Collective:
    """Return a collective with its buffers. `whole` and `part` (a rank's share) have the sizes of nccl-tests."""
    n, rank, elements = group.world_size, group.rank, size // _ELEMENT
    whole, other = (torch.zeros(elements, device=group.device) for _ in range(2))
    part = torch.zeros(elements // n, device=group.device)
    numbers = torch.arange(elements, device=group.device, dtype=torch.int32) % 16
    inputs = numbers[: elements // n] if name == "all_gather" else numbers
    shares, total = numbers.view(n, -1), n * (n + 1) // 2
    ranks = torch.arange(1, n + 1, device=group.device, dtype=torch.int32).repeat_interleave(elements // n)

    def all_reduce(_number: int) -> object:
        return dist.all_reduce(whole)

    def all_gather(_number: int) -> None:
        gather(whole, part)

    def reduce_scatter(_number: int) -> None:
        scatter_sum(part, whole)

    def all_to_all(_number: int) -> object:
        return dist.all_to_all_single(other, whole)

    # Input of a rank: its number plus the element's number. These are small integers, so that sums are exact in fp32.
    operation, source, target, expected, factor = {
        "all_reduce": (all_reduce, whole, whole, total + n * numbers, 2 * (n - 1) / n),
        "all_gather": (all_gather, part, whole, ranks + numbers[: elements // n].repeat(n), (n - 1) / n),
        "reduce_scatter": (reduce_scatter, whole, part, total + n * shares[rank], (n - 1) / n),
        "all_to_all": (all_to_all, whole, other, ranks + shares[rank].repeat(n), (n - 1) / n),
    }[name]

    def check() -> bool:
        target.fill_(-1)
        source.copy_(rank + 1 + inputs)
        operation(0)
        correct = bool((target == expected).all())
        source.zero_()  # repeated in-place sums of zeros stay zero
        return correct

    return Collective(operation, check, factor)


BENCHMARK = Benchmark("collectives", "Measure collectives.", CollectivesOptions, measure, shared=True)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
