"""How judging decides where nothing is said per check: the stated minimums and limits. Which check quarantines is policy, elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgingSettings:
    """The numbers of docs/bench-judging.md.

    `minimum_hosts` counts the judged host too; among fewer than `few_hosts` all are measured again where one is undecided.
    `minimum_repeats`: over all runs of a series. `minimum_history`: how many own passes make a history. `smallest_slowdown_percent`: less
    is never held against a host. `blind_percent`: where a slowdown of that much could not be seen, nothing passes by its peers.
    `false_flag_percent`: how many healthy hosts of a hundred may fail by chance, over all checks of a host together. Beyond
    `most_slow_percent` slow or `most_fast_percent` fast hosts, peers are no yardstick. `most_rounds` of measuring again; after each a
    series has at most `most_growth` times the repeats that it had, and a run never more than `most_repeats`, which is all that the
    benchmarks take. `group_share_percent`: a group whose bus bandwidth is less than this share of the pairs' median is bad; larger groups
    are somewhat slower than pairs by nature, and this is far beyond it.
    """

    minimum_hosts: int = 5
    few_hosts: int = 100
    minimum_repeats: int = 5
    minimum_history: int = 3
    smallest_slowdown_percent: float = 1.0
    blind_percent: float = 10.0
    false_flag_percent: float = 0.25
    most_slow_percent: float = 45.0
    most_fast_percent: float = 10.0
    most_rounds: int = 3
    most_growth: int = 4
    most_repeats: int = 200
    group_share_percent: float = 40.0
