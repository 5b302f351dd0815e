"""Measure the overlap of communication and computation: matrix products and an all-reduce, separately and concurrently.

    torchrun … workloads/bench/overlap.py [--size-mib 256 --width 8192]

The number of products is chosen so that they take as long as the all-reduce. Overlap = (compute + communication - both) / the shorter of
the two: 100 % is complete overlap, 0 % is none, and below 0 % they are slower concurrently than one after the other.
"""

from __future__ import annotations

import sys
import time
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
from workloads.common.device import synchronise
from workloads.common.process_group import Group, process_group, world_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.common.results import Sizes

_MIB = 2**20
_MOST_PRODUCTS = 1000


@dataclass(frozen=True, slots=True)
class OverlapOptions:
    """The options."""

    size_mib: int = field(default=0, metadata={"help": "size of the all-reduce (MiB); 0: 256 on GPUs, 4 on CPUs"})
    width: int = field(default=0, metadata={"help": "rows and columns of the matrices (bf16 on GPUs, fp32 on CPUs); 0: 8192 and 256"})
    device: str = field(default="auto", metadata=DEVICE)
    warm_up: int = field(default=3, metadata=WARM_UP)
    repeats: int = field(default=20, metadata=REPEATS)
    timeout_s: float = field(default=300.0, metadata=TIMEOUT_S)


class Work:
    """The products and the all-reduce of this rank."""

    def __init__(self, group: Group, width: int, size: int) -> None:
        """Create the operands."""
        generator = torch.Generator(group.device).manual_seed(0)
        dtype = torch.bfloat16 if group.device.type == "cuda" else torch.float32
        self.group = group
        self.a_NN = torch.randn(width, width, device=group.device, generator=generator).to(dtype)
        self.c_NN = torch.empty_like(self.a_NN)
        self.values = torch.zeros(size // 4, device=group.device)
        self.products = 1

    def compute(self) -> None:
        """Run the products."""
        for _ in range(self.products):
            torch.matmul(self.a_NN, self.a_NN, out=self.c_NN)

    def communicate(self) -> None:
        """Run the all-reduce."""
        dist.all_reduce(self.values)

    def both(self) -> None:
        """Run the all-reduce and the products concurrently."""
        handle = dist.all_reduce(self.values, async_op=True)
        self.compute()
        if handle is not None:
            handle.wait()


def measure(options: OverlapOptions, run: Run) -> None:
    """Measure the three alternately, so that a change of clocks affects all of them."""
    if world_size() < 2:
        print("overlap: skipped, because there is one rank only; start at least two (--nproc, --nnodes)")
        return
    with process_group(device=options.device, timeout_s=options.timeout_s) as group:
        gpu = group.device.type == "cuda"
        size, width = (options.size_mib or (256 if gpu else 4)) * _MIB, options.width or (8192 if gpu else 256)
        sizes: Sizes = {"bytes": size, "width": width, "dtype": "bf16" if gpu else "fp32"}
        with run.series("overlap_percent", "%", "higher", sizes) as series:
            work = Work(group, width, size)
            _balance(work, max(2, options.warm_up))
            correct = _is_correct(work)
            samples = [_overlap_percent(work) for _ in range(options.repeats)]
            series.done(samples, correct=_is_correct(work) and correct)


def _overlap_percent(work: Work) -> float:
    compute_s, communicate_s, both_s = (_slowest_s(work, part) for part in (work.compute, work.communicate, work.both))
    return (compute_s + communicate_s - both_s) / min(compute_s, communicate_s) * 100


def _balance(work: Work, warm_up: int) -> None:
    """Choose the number of products. All ranks choose the same number, because the times are those of the slowest rank."""
    compute_s = min(_slowest_s(work, work.compute) for _ in range(warm_up))
    communicate_s = min(_slowest_s(work, work.communicate) for _ in range(warm_up))
    work.products = min(_MOST_PRODUCTS, max(1, round(communicate_s / compute_s)))


def _slowest_s(work: Work, part: Callable[[], None]) -> float:
    """Return the seconds of the slowest rank."""
    dist.barrier()
    synchronise(work.group.device)
    started = time.perf_counter()
    part()
    synchronise(work.group.device)
    seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=work.group.background)
    return float(seconds.item())


def _is_correct(work: Work) -> bool:
    """Return whether the concurrent results equal the separate results on every rank."""
    group = work.group
    torch.matmul(work.a_NN, work.a_NN, out=work.c_NN)
    alone_NN = work.c_NN.clone()
    work.values.fill_(group.rank + 1)
    work.both()
    synchronise(group.device)
    correct = bool((work.values == group.world_size * (group.world_size + 1) // 2).all()) and torch.equal(work.c_NN, alone_NN)
    work.values.zero_()
    if not correct:
        print(f"overlap: rank {group.rank} got a wrong result", file=sys.stderr, flush=True)
    all_correct = torch.tensor([int(correct)])
    dist.all_reduce(all_correct, op=dist.ReduceOp.MIN, group=group.background)
    return bool(all_correct.item())


BENCHMARK = Benchmark("overlap", "Measure the overlap of communication and computation.", OverlapOptions, measure, shared=True)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
