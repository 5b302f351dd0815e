"""Decide whether a group is slow. Pure functions.

Pairs are compared with the floor of their model and with the other pairs, larger groups with the median of the pairs. With too few
pairs, speed is not evaluated.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.fabric.group_runs import METRIC
from primus_bootstrap.bench.judging.criteria import CriterionResult, NotApplicable, floor_criterion, peer_criterion
from primus_bootstrap.bench.judging.samples import GroupKey, make_samples
from primus_bootstrap.bench.results.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from primus_bootstrap.bench.judging.floors import Floors
    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
    from primus_bootstrap.bench.reason_codes import Code
    from primus_bootstrap.bench.results.group_records import Answer, GroupRunResult
    from primus_bootstrap.bench.results.reader import Result

# Bus bandwidths of groups of any size are comparable with the same collective, data type and log2 of the message size. Rounding the
# logarithm ignores the bytes that a rank's share rounds off.
Kind = tuple[str, str, float]


class GroupVerdict(NamedTuple):
    """The verdict on a group; `code` says why its speed is unknown."""

    answer: Answer
    reason: str = ""
    code: Code | None = None


def evaluate_pairs(
    runs: Iterable[GroupRunResult], comparable: Callable[[tuple[str, ...]], str], floors: Floors, settings: JudgingSettings
) -> Mapping[tuple[str, ...], GroupVerdict]:
    """Evaluate pairs by all their runs. A pair that works, but has nothing to compare with, passes with the code `no_reference`.

    Args:
        comparable: Returns the same text for pairs with the same models and the same kind of path.
    """
    by_pair: dict[tuple[str, ...], list[GroupRunResult]] = defaultdict(list)
    by_series: dict[tuple[str, GroupKey], dict[tuple[str, ...], list[Result]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_pair[run.hosts].append(run)
        for result in run.results() if run.answer == "pass" else ():
            key = GroupKey(result.series, result.unit, result.better, result.model, result.stack)
            by_series[comparable(run.hosts), key][run.hosts].append(result)
    chance = settings.false_flag_percent / 100 / max(1, len({key.series for _, key in by_series}))
    criteria: dict[tuple[str, ...], list[CriterionResult | NotApplicable]] = defaultdict(list)
    for (_, key), results in by_series.items():
        for pair, outcomes in _apply_criteria(key, results, chance, floors, settings).items():
            criteria[pair] += outcomes
    most = max((len(results) for results in by_series.values()), default=0)
    return {pair: _pair_verdict(pair_runs, criteria[pair], most, settings) for pair, pair_runs in by_pair.items()}


def undecided_pairs(runs: Iterable[GroupRunResult], verdicts: Mapping[tuple[str, ...], GroupVerdict]) -> tuple[tuple[str, ...], ...]:
    """Return the pairs that ran once and did not pass, so that a second run may decide. A cause that most pairs share is not repeated."""
    counts = Counter(run.hosts for run in runs)
    return tuple(pair for pair, verdict in verdicts.items() if counts[pair] == 1 and verdict.answer != "pass" and verdict.code != "shared")


def _apply_criteria(
    key: GroupKey, results: Mapping[tuple[str, ...], Sequence[Result]], chance: float, floors: Floors, settings: JudgingSettings
) -> Mapping[tuple[str, ...], list[CriterionResult | NotApplicable]]:
    """Compare each pair with the floor and with the other pairs in one series."""
    pairs = {",".join(pair): pair for pair in results}
    samples = {sample.host: sample for sample in make_samples(key, {(name, ""): results[pair] for name, pair in pairs.items()})}
    floor = floors.find(key.series, key.model)
    peers = peer_criterion(key, tuple(samples.values()), History(), dict.fromkeys(samples, chance), settings, "pairs")
    criteria = [floor_criterion(floor, key.better), peers] if floor else [peers]
    return {pairs[name]: [criterion(sample) for criterion in criteria] for name, sample in samples.items()}


def _pair_verdict(
    runs: Sequence[GroupRunResult], criteria: Sequence[CriterionResult | NotApplicable], most: int, settings: JudgingSettings
) -> GroupVerdict:
    """Return the verdict on a pair. Runs without an answer are ignored if another run gave one."""
    answered = [run for run in runs if run.answer != "unknown"]
    failed = [run for run in answered if run.answer == "fail"]
    if not answered:
        return GroupVerdict("unknown", runs[-1].reason)
    if failed and len(failed) < len(answered):
        return GroupVerdict(
            "unknown", f"{len(failed)} of {len(answered)} runs failed ({failed[0].reason}), and the other passed", "unsteady"
        )
    if failed:
        return GroupVerdict("fail", failed[0].reason)
    applied = [result for result in criteria if isinstance(result, CriterionResult)]
    for outcome in ("fail", "unknown"):
        for result in applied:
            if result.outcome == outcome:
                return GroupVerdict(outcome, f"{result.source}: {result.reason}", result.code)
    if not applied:
        too_few = f"{most} pairs are comparable, and {settings.minimum_hosts} are needed to evaluate their speed"
        notable = [result.reason for result in criteria if isinstance(result, NotApplicable) and result.notable]
        return GroupVerdict("pass", notable[0] if notable else too_few, "no_reference")
    return GroupVerdict("pass")


def pair_medians(runs: Iterable[GroupRunResult], settings: JudgingSettings) -> Mapping[Kind, float]:
    """Return the median bus bandwidth of pairs (GB/s) by kind; a kind with too few pairs is left out."""
    values: dict[Kind, list[float]] = defaultdict(list)
    for run in runs:
        if len(run.hosts) == 2 and run.answer == "pass":
            for kind, value in _bandwidths(run):
                values[kind].append(value)
    return {kind: median(found) for kind, found in values.items() if len(found) >= settings.minimum_hosts}


def evaluate_group(run: GroupRunResult, medians: Mapping[Kind, float], settings: JudgingSettings) -> GroupVerdict:
    """Return the verdict on a group: a run that passed fails if it is much slower than pairs are."""
    if run.answer != "pass":
        return GroupVerdict(run.answer, run.reason)
    comparable = [(kind, value) for kind, value in _bandwidths(run) if kind in medians]
    for kind, value in comparable:
        if 100 * value < settings.group_share_percent * medians[kind]:
            return GroupVerdict(
                "fail", f"{kind[0]} {value:.4g} GB/s, less than {settings.group_share_percent:g} % of the pairs' {medians[kind]:.4g}"
            )
    return GroupVerdict("pass", "" if comparable else "no pairs to compare its speed with", None if comparable else "no_reference")


def _bandwidths(run: GroupRunResult) -> list[tuple[Kind, float]]:
    """Return the bus bandwidth (GB/s) of each kind."""
    values: dict[Kind, float] = {}
    for result in run.results():
        sizes = json.loads(result.series.sizes)
        if result.series.metric == METRIC and result.value:
            values[str(sizes["collective"]), str(sizes["dtype"]), round(math.log2(sizes["bytes"]), 2)] = result.value
    return list(values.items())
