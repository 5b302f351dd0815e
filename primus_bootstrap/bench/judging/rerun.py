"""Decide which benchmarks to run again: those whose verdict more repeats can decide, in a limited number of rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings

# A comparison is decided when the standard error equals the gap. The factor allows for the change of the value itself.
_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """An undecided value."""

    host: str  # where it was measured
    benchmark: str  # name of the benchmark
    repeats: int  # repeats so far
    gap: float  # distance from the limit (natural logarithm)
    error: float  # standard error of the distance; 0 if more repeats are needed for another reason
    reason: str  # why it is undecided


@dataclass(frozen=True, slots=True)
class Rerun:
    """A benchmark to run again on a host; `repeats` is for each series."""

    host: str
    benchmark: str
    repeats: int
    reason: str


def plan_reruns(requests: Iterable[RerunRequest], settings: JudgingSettings, *, rounds_done: int) -> tuple[Rerun, ...]:
    """Return at most one rerun for each host and benchmark, with the largest number of repeats; none after the last round."""
    if rounds_done >= settings.max_rounds:
        return ()
    reruns: dict[tuple[str, str], Rerun] = {}
    for request in requests:
        key = request.host, request.benchmark
        repeats = _more_repeats(request, settings)
        if key not in reruns or repeats > reruns[key].repeats:
            reruns[key] = Rerun(request.host, request.benchmark, repeats, request.reason)
    return tuple(reruns.values())


def _more_repeats(request: RerunRequest, settings: JudgingSettings) -> int:
    """Return the number of further repeats: the standard error falls with the square root of the total."""
    if request.repeats < settings.minimum_repeats or not request.error:
        return min(max(settings.minimum_repeats, request.repeats), settings.max_repeats)
    growth = settings.max_growth if request.gap <= 0 else min(settings.max_growth, (_MARGIN * request.error / request.gap) ** 2)
    return min(math.ceil(request.repeats * max(1.0, growth - 1)), settings.max_repeats)
