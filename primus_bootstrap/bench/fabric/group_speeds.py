"""Is a group slow? Pairs are held against the floor of their model and against the other pairs; larger groups against the pairs' median.

Pure functions. Where too few pairs were measured, nothing is said of speed.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.fabric.group_runs import METRIC
from primus_bootstrap.bench.judging.criteria import CriterionResult, NotApplicable, by_floor, by_peers
from primus_bootstrap.bench.judging.samples import GroupKey, make_members
from primus_bootstrap.bench.results.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from primus_bootstrap.bench.fabric.bisection import Answer
    from primus_bootstrap.bench.fabric.group_runs import GroupRunResult
    from primus_bootstrap.bench.judging.floors import Floors
    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
    from primus_bootstrap.bench.judging.reason_codes import Code
    from primus_bootstrap.bench.results.reader import Result

# What makes bus bandwidths of groups of any size comparable: the collective, the type, and the size but for what a rank's share rounds off.
Kind = tuple[str, str, float]


class GroupVerdict(NamedTuple):
    """What a pair's run says in the end; `code` is why it is not known to be fast enough, where a word says it."""

    answer: Answer
    reason: str = ""
    code: Code | None = None


def judge_pairs(
    ran: Iterable[GroupRunResult], alike: Callable[[tuple[str, ...]], str], floors: Floors, settings: JudgingSettings
) -> Mapping[tuple[str, ...], GroupVerdict]:
    """Judge pairs by all the runs that each has made.

    One that ran well and that nothing can be held against is a pass with the code `no_yardstick`: it proves that the two work.

    Args:
        ran: The runs of one step.
        alike: Returns the same text for pairs that may be compared: the same models, the same kind of path.
        floors: The floors of models.
        settings: The minimums and limits.
    """
    runs: dict[tuple[str, ...], list[GroupRunResult]] = defaultdict(list)
    said: dict[tuple[str, ...], list[CriterionResult | NotApplicable]] = defaultdict(list)
    series: dict[tuple[str, GroupKey], dict[tuple[str, ...], list[Result]]] = defaultdict(lambda: defaultdict(list))
    for each in ran:
        runs[each.run.hosts].append(each)
        for result in each.results() if each.answer == "pass" else ():
            key = GroupKey(result.series, result.unit, result.better, result.model, result.stack)
            series[alike(each.run.hosts), key][each.run.hosts].append(result)
    chance = settings.false_flag_percent / 100 / max(1, len({key.series for _, key in series}))
    most = 0
    for (_, key), results in series.items():
        most = max(most, len(results))
        for pair, outcomes in _say(key, results, chance, floors, settings).items():
            said[pair] += outcomes
    return {pair: _judged(each, said[pair], most, settings) for pair, each in runs.items()}


def in_doubt(ran: Iterable[GroupRunResult], judged: Mapping[tuple[str, ...], GroupVerdict]) -> tuple[tuple[str, ...], ...]:
    """Return the pairs that one more run may settle: they failed or gave no clear answer, and have run once.

    What most pairs share is not among them: more of the same would not settle it.
    """
    times = Counter(each.run.hosts for each in ran)
    return tuple(pair for pair, said in judged.items() if times[pair] == 1 and said.answer != "pass" and said.code != "shared")


def _say(
    key: GroupKey, results: Mapping[tuple[str, ...], Sequence[Result]], chance: float, floors: Floors, settings: JudgingSettings
) -> Mapping[tuple[str, ...], list[CriterionResult | NotApplicable]]:
    """Return what floor and peers say of each pair in one series."""
    names = {",".join(pair): pair for pair in results}
    members = {member.host: member for member in make_members(key, {(name, ""): results[pair] for name, pair in names.items()})}
    floor = floors.find(key.series, key.model)
    peers = by_peers(key, tuple(members.values()), History(), dict.fromkeys(members, chance), settings, "pairs")
    sticks = [by_floor(floor, key.better), peers] if floor else [peers]
    return {names[name]: [stick(member) for stick in sticks] for name, member in members.items()}


def _judged(
    ran: Sequence[GroupRunResult], said: Sequence[CriterionResult | NotApplicable], most: int, settings: JudgingSettings
) -> GroupVerdict:
    """Return what a pair's runs say together: one without an answer says nothing beside one that has one."""
    answered = [each for each in ran if each.answer != "unknown"]
    bad = [each for each in answered if each.answer == "fail"]
    if not answered:
        return GroupVerdict("unknown", ran[-1].reason)
    if bad and len(bad) < len(answered):
        return GroupVerdict("unknown", f"{len(bad)} of {len(answered)} runs failed ({bad[0].reason}), and the other passed", "unsteady")
    if bad:
        return GroupVerdict("fail", bad[0].reason)
    spoken = [each for each in said if isinstance(each, CriterionResult)]
    for outcome in ("fail", "unknown"):
        for each in spoken:
            if each.outcome == outcome:
                return GroupVerdict(outcome, f"{each.source}: {each.reason}", each.code)
    if not spoken:
        few = f"{most} pairs are alike, and {settings.minimum_hosts} are needed to compare their speed"
        quiet = [each.reason for each in said if isinstance(each, NotApplicable) and each.notable]
        return GroupVerdict("pass", quiet[0] if quiet else few, "no_yardstick")
    return GroupVerdict("pass")


def reference(ran: Iterable[GroupRunResult], settings: JudgingSettings) -> Mapping[Kind, float]:
    """Return the median bus bandwidth of pairs (GB/s) by kind; a kind of which too few pairs were measured has none."""
    found: dict[Kind, list[float]] = defaultdict(list)
    for each in ran:
        if len(each.run.hosts) == 2 and each.answer == "pass":
            for kind, value in _speeds(each):
                found[kind].append(value)
    return {kind: median(values) for kind, values in found.items() if len(values) >= settings.minimum_hosts}


def hold_against(ran: GroupRunResult, medians: Mapping[Kind, float], settings: JudgingSettings) -> GroupVerdict:
    """Return what a group's run says: one that ran well is bad where it is far slower than pairs are."""
    if ran.answer != "pass":
        return GroupVerdict(ran.answer, ran.reason)
    known = [(kind, value) for kind, value in _speeds(ran) if kind in medians]
    for kind, value in known:
        if 100 * value < settings.group_share_percent * medians[kind]:
            return GroupVerdict(
                "fail", f"{kind[0]} {value:.4g} GB/s, less than {settings.group_share_percent:g} % of the pairs' {medians[kind]:.4g}"
            )
    return GroupVerdict("pass", "" if known else "no pairs to compare its speed with", None if known else "no_yardstick")


def _speeds(ran: GroupRunResult) -> list[tuple[Kind, float]]:
    """Return each kind once with its bus bandwidth (GB/s)."""
    found: dict[Kind, float] = {}
    for result in ran.results():
        sizes = json.loads(result.series.sizes)
        if result.series.metric == METRIC and result.value:
            found[str(sizes["collective"]), str(sizes["dtype"]), round(math.log2(sizes["bytes"]), 2)] = result.value
    return list(found.items())
