"""The limits of the evaluation. The policy decides which failed checks quarantine a host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgingSettings:
    """The limits that docs/bench-judging.md explains."""

    minimum_hosts: int = 5  # hosts needed for a comparison with peers, the evaluated one included
    few_hosts: int = 100  # with fewer hosts, all of them are measured again if one is undecided
    minimum_repeats: int = 5  # repeats needed over all runs of a series
    minimum_history: int = 3  # passes of a device needed for a comparison with its history
    smallest_slowdown_percent: float = 1.0  # a smaller slowdown never fails a host
    blind_percent: float = 10.0  # a comparison that could not detect a slowdown of this size passes no host
    false_flag_percent: float = 0.25  # share of healthy hosts that may fail by chance, over all checks of a host together
    max_slow_percent: float = 45.0  # with a larger share of slow hosts, peers are not compared with each other
    max_fast_percent: float = 10.0  # the same for a share of fast hosts
    max_rounds: int = 3  # rounds of reruns
    max_growth: int = 4  # factor by which a rerun may increase the repeats of a series
    max_repeats: int = 200  # repeats of one run; the benchmarks accept no more
    # A group with less than this share of the pairs' median bus bandwidth fails. Larger groups are somewhat slower than pairs in a healthy
    # fabric; this limit is far below that.
    group_share_percent: float = 40.0
