"""What to measure again: only what may leave `unknown` by it, with as many repeats as that needs, in a bounded number of rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings

# A comparison is settled where the gap is the standard error; half as much again, because the value moves too.
_ROOM = 1.5


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """One undecided value: `repeats` it has, how far it is from the limit and the error (natural logarithms), and why it is undecided."""

    host: str
    benchmark: str
    repeats: int
    gap: float
    error: float
    reason: str


@dataclass(frozen=True, slots=True)
class Rerun:
    """A benchmark to run again on a host, with so many repeats a series; `round` counts from 1."""

    host: str
    benchmark: str
    repeats: int
    round: int
    reason: str


def follow_up(wishes: Iterable[RerunRequest], settings: JudgingSettings, *, rounds_done: int) -> tuple[Rerun, ...]:
    """Return one run a host and benchmark, for the wish that needs most; nothing after the last round."""
    if rounds_done >= settings.most_rounds:
        return ()
    most: dict[tuple[str, str], Rerun] = {}
    for wish in wishes:
        again = Rerun(wish.host, wish.benchmark, _repeats(wish, settings), rounds_done + 1, wish.reason)
        known = most.get((wish.host, wish.benchmark))
        if known is None or again.repeats > known.repeats:
            most[wish.host, wish.benchmark] = again
    return tuple(most.values())


def _repeats(wish: RerunRequest, settings: JudgingSettings) -> int:
    """Return how many repeats more: the standard error falls with their square root."""
    if wish.repeats < settings.minimum_repeats or not wish.error:
        return min(max(settings.minimum_repeats, wish.repeats), settings.most_repeats)
    growth = settings.most_growth if wish.gap <= 0 else min(settings.most_growth, (_ROOM * wish.error / wish.gap) ** 2)
    return min(math.ceil(wish.repeats * max(1.0, growth - 1)), settings.most_repeats)
