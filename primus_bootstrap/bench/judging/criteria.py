"""The three yardsticks of a value: the floor of its model, its peers, and its own history. Each says pass, fail, unknown, or nothing.

All comparisons are of natural logarithms. A slowdown is how much longer the same work takes: 1 % slower is 0.00995.

    pass     the slowdown is below the limit by at least its standard error, and the limit is one that would be seen
    fail     it is above the limit by at least its standard error, and beyond what a healthy device shows by chance
    unknown  between the two: below the noise floor. More repeats move the two together

The limit is the largest of: the smallest slowdown that matters; how far healthy devices lie apart; twice the usual standard error.
Where a slowdown that matters could not be seen, nobody passes by it. If that is because of how a member was measured, it is unknown. If
it is because devices differ by nature, which no measuring changes, the yardstick says nothing, and the others decide: where hardly anybody
is that much slower or faster than the rest, only so scattered that one who was would still be among them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.judging.samples import to_level
from primus_bootstrap.bench.judging.statistics import MEDIAN_ERROR, PLAIN_MOST, Spread, multiplier, spread
from primus_bootstrap.bench.results.history import Comparable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.bench.judging.floors import Floor
    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
    from primus_bootstrap.bench.judging.reason_codes import Code
    from primus_bootstrap.bench.judging.samples import GroupKey, Place, Sample
    from primus_bootstrap.bench.results.history import History
    from primus_bootstrap.core.verdicts import Outcome

# Among more hosts than this, leaving one out changes the peers' median and spread by less than their own uncertainty.
_LEAVE_ONE_OUT = 64
# A value above the published peak by more than its rounding was not measured right.
_ABOVE_PEAK = 1.02
# An error of so many times what healthy devices lie apart: below it, no repeats would make their spread seem smaller by more than 3 %.
_PLAYS_A_PART = 0.25
# The noise of runs is only known from so many earlier values of all devices of the group together.
_EARLIER_VALUES = 8


class CriterionResult(NamedTuple):
    """What one yardstick says. `limit` is a level; `gap` how far the member is from it (natural logarithm), `error` the doubt about that.

    `settles` is False where measuring again cannot help. `code` is why it is unknown, where a word says it.
    """

    outcome: Outcome
    limit: float
    source: str
    reason: str = ""
    gap: float = 0.0
    error: float = 0.0
    settles: bool = True
    code: Code | None = None


class NotApplicable(NamedTuple):
    """Why a yardstick says nothing. `notable`: it had enough to compare with, so that a pass without it says this reason."""

    reason: str
    notable: bool = False


class Limits(NamedTuple):
    """What other values say a healthy one is. `limit` is a slowdown; up to `surely` it would be one among however many values too.

    `least` would be the limit of values that differ only by how they were measured.
    """

    center: float
    center_error: float
    apart: float
    reach: float
    least: float
    limit: float
    surely: float
    settles: bool


class Comparison(NamedTuple):
    """A member against other values: its slowdown, the limit, the doubt, and the outcome.

    `blind`: a slowdown of `blind_percent` would not be told from a healthy value. `noisy`: how it was measured plays a part in that, and
    more repeats may mend it. `far`: it is so much slower or faster than they are.
    """

    outcome: Outcome
    center: float
    slowdown: float
    limit: float
    error: float
    fast: bool
    blind: bool
    noisy: bool
    far: bool
    settles: bool


def percent(slowdown: float) -> float:
    """Return a slowdown as percent: how much longer the same work takes."""
    return 100 * math.expm1(slowdown)


@lru_cache(maxsize=1024)
def limits(rest: Spread, usual_error: float, chance: float, settings: JudgingSettings) -> Limits:
    """Return the limits that other values set; `usual_error` is what of their spread is only how they were measured."""
    apart = math.sqrt(max(0.0, rest.sigma**2 - usual_error**2))
    reach = multiplier(chance, rest.size)
    least = max(math.log1p(settings.smallest_slowdown_percent / 100), 2 * usual_error)
    known = NormalDist().inv_cdf(1 - chance) * apart
    return Limits(
        center=rest.center,
        center_error=MEDIAN_ERROR * rest.sigma / math.sqrt(rest.size),
        apart=apart,
        reach=reach,
        least=least,
        limit=max(least, reach * apart),
        surely=max(least, known),
        settles=known < math.log1p(settings.blind_percent / 100),
    )


def see(member: Sample, known: Limits, settings: JudgingSettings) -> Comparison:
    """Compare a member with other values."""
    center, limit = known.center, known.limit
    error = math.hypot(member.error, known.center_error)
    beyond = max(limit + error, known.reach * math.hypot(error, known.apart))
    slowdown = center - member.level
    most = math.log1p(settings.blind_percent / 100)
    blind = limit + error > most
    noisy = known.least + member.error > most or member.error > _PLAYS_A_PART * known.apart
    outcome: Outcome = "fail" if slowdown >= beyond else "unknown" if blind or slowdown > known.surely - error else "pass"
    return Comparison(outcome, center, slowdown, limit, error, -slowdown >= beyond, blind, noisy, abs(slowdown) > most, known.settles)


def by_floor(floor: Floor, better: str) -> Callable[[Sample], CriterionResult]:
    """Return what the floor of the model, and its peak, say of a member."""
    level, peak = (math.log(each) if better == "higher" else -math.log(each) for each in (floor.value, floor.peak))
    source = f"floor: {floor.text()}"
    reached = CriterionResult("pass", level, source)

    def say(member: Sample) -> CriterionResult:
        gap = level - member.level
        if member.level > peak + math.log(_ABOVE_PEAK):
            reason = f"above the published peak of {floor.peak:g}: this was not measured right, or the model is another one"
            return CriterionResult("unknown", level, source, reason, settles=False)
        if gap <= 0:
            return reached
        if gap > 2 * member.error:
            return CriterionResult("fail", level, source, f"{percent(gap):.1f} % below the floor")
        return CriterionResult(
            "unknown", level, source, f"{percent(gap):.1f} % below the floor, within the noise", gap, member.error, code="noise"
        )

    return say


def by_peers(  # noqa: PLR0913, PLR0917 - the whole of what it rests on
    key: GroupKey, members: Sequence[Sample], history: History, chances: Mapping[str, float], settings: JudgingSettings, what: str = "hosts"
) -> Callable[[Sample], CriterionResult | NotApplicable]:
    """Return what the peers say of each member: hosts of the same model and versions in this run, or earlier passes where those are few.

    `what` is what the members are where they are no hosts.
    """
    hosts = {member.host for member in members}
    earlier = _earlier_peers(key, members, history) if len(hosts) < settings.minimum_hosts else {}
    count = len(hosts | earlier.keys())
    if count < settings.minimum_hosts:
        silent = NotApplicable(
            f"{count} host{'s' if count != 1 else ''} of {key.model} with these versions, peers need {settings.minimum_hosts}"
        )
        return lambda _: silent
    seen = _see_all(members, earlier, chances, settings)
    source = f"peers: {count - 1} {what} of {key.model}" + (f", {len(earlier)} of them in earlier benches" if earlier else "")
    common = _in_common(seen, count, settings, what)
    natural = not common and _one_kind(seen, settings)

    def say(member: Sample) -> CriterionResult | NotApplicable:
        found = seen[member.host, member.device]
        slow = found.far and found.slowdown > 0
        if natural and found.blind and found.outcome != "fail" and not found.noisy and not slow:
            unseen = f"a slowdown of {percent(found.limit + found.error):.0f} % would not be seen here"
            return NotApplicable(f"its peers lie too far apart: {unseen}", notable=True)
        return _said(found, source, "its peers", common)

    return say


def by_history(
    key: GroupKey, members: Sequence[Sample], history: History, chances: Mapping[str, float], settings: JudgingSettings
) -> Callable[[Sample], CriterionResult | NotApplicable]:
    """Return what a member's own earlier passes say of it: those of its serial with the same model and versions."""
    own = {device: levels for device, levels in _earlier(key, history).items() if len(levels) >= settings.minimum_history}
    scatter = [level - median(levels) for levels in own.values() for level in levels]
    if len(scatter) < _EARLIER_VALUES:
        return lambda _: NotApplicable(f"fewer than {settings.minimum_history} own passes with these versions")
    # The median that is taken away was made of the same few values.
    sigma = spread(scatter).sigma * math.sqrt(settings.minimum_history / (settings.minimum_history - 1))
    usual = median([member.error for member in members])
    seen: dict[Place, Comparison] = {}
    for member in members:
        if member.key in own:
            rest = Spread(median(own[member.key]), sigma, len(scatter))
            seen[member.host, member.device] = see(member, limits(rest, usual, chances[member.host], settings), settings)
    hosts = len({host for host, _ in seen})
    common = _in_common(seen, hosts, settings) if hosts >= settings.minimum_hosts else ""

    def say(member: Sample) -> CriterionResult | NotApplicable:
        found = seen.get((member.host, member.device))
        if found is None:
            return NotApplicable(f"fewer than {settings.minimum_history} own passes with these versions")
        if found.blind and found.outcome != "fail":
            return NotApplicable("its own passes differ too much among themselves")
        return _said(found, f"history: {len(own[member.key])} passes of {member.key}", "before", common)

    return say


def _see_all(
    members: Sequence[Sample], earlier: Mapping[str, Sequence[float]], chances: Mapping[str, float], settings: JudgingSettings
) -> dict[Place, Comparison]:
    usual = median([member.error for member in members])
    more = [level for levels in earlier.values() for level in levels]
    hosts = {member.host for member in members}
    whole = spread([member.level for member in members] + more)
    rests = dict.fromkeys(hosts, whole)
    failed: set[str] = set()
    while True:
        if len(hosts) <= _LEAVE_ONE_OUT:
            for host in hosts:
                rests[host] = spread([member.level for member in members if member.host not in failed | {host}] + more)
        known = {host: limits(rests[host], usual, chances[host], settings) for host in hosts}
        seen = {(member.host, member.device): see(member, known[member.host], settings) for member in members}
        slow = {host for (host, _), each in seen.items() if each.outcome == "fail"}
        # Of few peers nothing is left out by the estimate itself: who is known to be slow is no yardstick for the others.
        if whole.size > PLAIN_MOST + 1 or slow <= failed or len(hosts) - len(slow | failed) < settings.minimum_hosts:
            return seen
        failed |= slow


def _one_kind(seen: Mapping[Place, Comparison], settings: JudgingSettings) -> bool:
    """Return whether hardly any host, or any device, lies far off: where more do, there are rather two kinds of which one is ill."""
    far = [place for place, each in seen.items() if each.far]
    shares = (len({host for host, _ in far}), len({host for host, _ in seen})), (len(far), len(seen))
    return any(some <= 1 or 100 * some <= settings.most_fast_percent * count for some, count in shares)


def _in_common(seen: Mapping[Place, Comparison], hosts: int, settings: JudgingSettings, what: str = "hosts") -> str:
    """Return why these are no yardstick for each other, or nothing: where many of so many hosts are off, the good ones are not known."""
    slow = {host for (host, _), each in seen.items() if each.outcome == "fail"}
    fast = {host for (host, _), each in seen.items() if each.fast}
    if 100 * len(slow) > settings.most_slow_percent * hosts:
        return f"{len(slow)} of {hosts} {what} are slower than they should be: rather something that they share than each of them"
    if len(fast) > 1 and 100 * len(fast) > settings.most_fast_percent * hosts:
        return f"{len(fast)} of {hosts} {what} are much faster than the rest: which of the two kinds is healthy is not known"
    return ""


def _said(seen: Comparison, source: str, others: str, common: str) -> CriterionResult:
    limit = seen.center - seen.limit
    if common:
        return CriterionResult("unknown", limit, source, common, settles=False, code="shared")
    if seen.outcome == "pass":
        return CriterionResult("pass", limit, source)
    speed = f"{abs(percent(seen.slowdown)):.1f} % {'worse' if seen.slowdown >= 0 else 'better'} than {others}"
    if seen.outcome == "fail":
        return CriterionResult(
            "fail", limit, source, f"{speed}; healthy is up to {percent(seen.limit):.1f} %, the error {percent(seen.error):.2f} %"
        )
    if seen.blind:
        why = "it was measured too roughly" if seen.noisy else "the values lie too far apart"
        reason = f"{speed}, but a slowdown of {percent(seen.limit + seen.error):.0f} % would not be seen here: {why}"
        return CriterionResult("unknown", limit, source, reason, 0.0, seen.error, seen.settles or seen.noisy, "noise")
    reason = f"{speed}: too near to the limit of {percent(seen.limit):.1f} % for an error of {percent(seen.error):.2f} %"
    return CriterionResult("unknown", limit, source, reason, abs(seen.limit - seen.slowdown), seen.error, code="noise")


def _earlier(key: GroupKey, history: History) -> dict[str, list[float]]:
    """Return the levels of earlier passes by device, oldest first."""
    found = history.values.get(Comparable(key.series, key.unit, key.model, key.stack), {})
    return {device: [to_level(value, key.unit, key.better) for _, value in values] for device, values in found.items()}


def _earlier_peers(key: GroupKey, members: Sequence[Sample], history: History) -> dict[str, list[float]]:
    """Return the latest passing levels of the devices of hosts that are not in this run, by host."""
    measured, present = {member.key for member in members}, {member.host for member in members}
    found: dict[str, list[float]] = {}
    for device, levels in _earlier(key, history).items():
        host = history.records[device][-1].host
        if device not in measured and host not in present:
            found.setdefault(host, []).append(levels[-1])
    return found
