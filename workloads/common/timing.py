"""Timing of what a device does: warm-up, then samples with the device idle on both sides of each."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from workloads.common.device import synchronise

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# A sample is at least this long: waiting for a GPU costs some ten microseconds, which a short operation must not be charged with.
LEAST_SAMPLE_S = 0.005
_MOST_ROUNDS = 1000


def time_samples(  # noqa: PLR0913 - how to time, and how ranks keep together
    operation: Callable[[int], object],
    device: torch.device,
    *,
    warm_up: int,
    repeats: int,
    agree: Callable[[float], float] = lambda value: value,
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """Return the seconds of one operation in each sample; a short operation is done several times in a sample.

    Args:
        operation: is given a number that counts up, so that it can take another buffer each time.
        device: what is waited for.
        warm_up: operations before the clock starts.
        repeats: samples.
        agree: makes one number of the ranks' numbers, where all of them must do as many operations.
        before: is called before each sample, like a barrier.
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
    # The quickest is the least disturbed; the first may have compiled something.
    rounds = min(_MOST_ROUNDS, max(1, math.ceil(LEAST_SAMPLE_S / max(agree(min(warm_up_s)), 1e-9))))
    return [sample_s(rounds) / rounds for _ in range(repeats)]
