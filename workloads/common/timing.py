"""Time operations of a device: warm up, then take samples, with the device idle before and after each sample."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from workloads.common.device import synchronise

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# The shortest sample: synchronizing with a GPU takes some ten microseconds, which would distort the time of a short operation.
LEAST_SAMPLE_S = 0.005
_MOST_ROUNDS = 1000


def time_samples(  # noqa: PLR0913 - timing options, and two callbacks for several ranks
    operation: Callable[[int], object],
    device: torch.device,
    *,
    warm_up: int,
    repeats: int,
    combine: Callable[[float], float] = lambda value: value,
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """Return the seconds per operation of each sample. A sample of a short operation runs it several times.

    Args:
        operation: Called with an increasing number, so that it can use another buffer each time.
        device: The device to synchronize with.
        warm_up: Number of operations before the first sample.
        repeats: Number of samples.
        combine: Reduces a time over the ranks, so that all ranks run the same number of operations.
        before: Called before each sample, for example a barrier.
    """
    count = 0

    def sample_s(rounds: int) -> float:
        nonlocal count
        before()
        synchronise(device)
        started = time.perf_counter()
        for number in range(count, count + rounds):
            operation(number)
        synchronise(device)
        count += rounds
        return time.perf_counter() - started

    warm_up_s = [sample_s(1) for _ in range(max(2, warm_up))]
    # Use the shortest: the first operation may compile.
    rounds = min(_MOST_ROUNDS, max(1, math.ceil(LEAST_SAMPLE_S / max(combine(min(warm_up_s)), 1e-9))))
    return [sample_s(rounds) / rounds for _ in range(repeats)]
