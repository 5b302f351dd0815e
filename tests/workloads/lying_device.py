"""Benchmarks with simulated device faults: functions of torch are replaced in this process."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from workloads.bench import collectives, gemm, memory_bandwidth

if TYPE_CHECKING:
    from collections.abc import Callable


def gemm_wrong(argv: list[str]) -> int:
    """Multiply, with one wrong element."""
    right = torch.matmul

    def wrong(*operands: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        right(*operands, out=out)
        out[0, 0] += 1000
        return out

    torch.matmul = wrong  # type: ignore[assignment]
    return gemm.main(argv)


def gemm_stuck(argv: list[str]) -> int:
    """Multiply, with a hang."""
    torch.matmul = lambda *_operands, **_more: time.sleep(60)  # type: ignore[assignment]
    return gemm.main(argv)


def memory_full(argv: list[str]) -> int:
    """Measure memory bandwidth, with an out-of-memory error at the third array of the first operation."""
    right, count = torch.full, 0

    def full(*size: Any, **more: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        if count == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return right(*size, **more)

    torch.full = full
    return memory_bandwidth.main(argv)


def scaling_told(argv: list[str]) -> int:
    """Measure memory bandwidth, and print a line when the second operation starts."""
    right = torch.mul

    def mul(*operands: Any, **more: Any) -> torch.Tensor:
        os.write(1, b"scaling\n")
        return right(*operands, **more)

    torch.mul = mul
    return memory_bandwidth.main(argv)


def memory_stopped_while_written(argv: list[str]) -> int:
    """Measure memory bandwidth, with SIGTERM after the first line is printed and before it is in the file."""
    return _stopped_while_written(memory_bandwidth.main, argv)


def gemm_stopped_while_written(argv: list[str]) -> int:
    """Multiply once, with SIGTERM while the only line is written."""
    return _stopped_while_written(gemm.main, argv)


def _stopped_while_written(main: Callable[[list[str]], int], argv: list[str]) -> int:
    right = fcntl.flock

    def flock(*arguments: Any) -> None:
        fcntl.flock = right
        os.kill(os.getpid(), signal.SIGTERM)
        right(*arguments)

    fcntl.flock = flock  # called after opening results.jsonl, before the write
    return main(argv)


def exchange_wrong_at_first(argv: list[str]) -> int:
    """Exchange, with one wrong element on rank 1 in the first call only."""
    return _exchange_wrong(argv, lambda count: count == 1)


def exchange_wrong_later(argv: list[str]) -> int:
    """Exchange, with one wrong element on rank 1 from the fourth call."""
    return _exchange_wrong(argv, lambda count: count > 3)


def _exchange_wrong(argv: list[str], is_wrong: Callable[[int], bool]) -> int:
    right, count = dist.all_to_all_single, 0

    def exchange(output: torch.Tensor, *more: Any) -> object:
        nonlocal count
        count += 1
        done = right(output, *more)
        if dist.get_rank() == 1 and is_wrong(count):
            output[-1] += 1
        return done

    dist.all_to_all_single = exchange  # type: ignore[assignment]
    return collectives.main(argv)
