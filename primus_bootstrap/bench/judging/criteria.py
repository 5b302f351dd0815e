"""Compare a sample with the floor of its model, with its peers and with its own history.

All comparisons use natural logarithms. A slowdown is how much longer the same work takes: 1 % slower is 0.00995.

    pass     the slowdown is below the limit by at least its standard error, and the comparison can detect a relevant slowdown
    fail     the slowdown is above the limit by at least its standard error, and larger than healthy devices show by chance
    unknown  between the two; more repeats reduce the standard error

The limit is the largest of: the smallest relevant slowdown; the natural spread of healthy devices; twice the usual standard error.
A comparison that cannot detect a relevant slowdown passes no sample. If the measurement is the cause, the result is unknown. If the
devices differ by nature, the criterion does not apply, and the other criteria decide. Outliers are `unknown` in that case.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.judging.samples import to_level
from primus_bootstrap.bench.judging.statistics import MAX_PLAIN_SIZE, MEDIAN_ERROR, Spread, multiplier, spread
from primus_bootstrap.bench.results.history import Comparable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.bench.judging.floors import Floor
    from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
    from primus_bootstrap.bench.judging.samples import DeviceId, GroupKey, Sample
    from primus_bootstrap.bench.reason_codes import Code
    from primus_bootstrap.bench.results.history import History
    from primus_bootstrap.core.verdicts import Outcome

    Criterion = Callable[[Sample], "CriterionResult | NotApplicable"]

# With more hosts than this, leaving one out changes median and spread by less than their uncertainty.
_MAX_LEAVE_ONE_OUT = 64
# A value above the published peak by more than rounding is a wrong measurement.
_MAX_PEAK_SHARE = 1.02
# An error of this share of the natural spread. With a smaller one, more repeats reduce the observed spread by 3 % at most.
_RELEVANT_ERROR_SHARE = 0.25
# The noise between runs needs this many earlier values, of all devices of the group together.
_MIN_EARLIER_VALUES = 8


class CriterionResult(NamedTuple):
    """The result of one criterion."""

    outcome: Outcome  # `pass`, `fail` or `unknown`
    limit: float  # the limit, as a level
    source: str  # what the sample was compared with
    reason: str = ""  # why it did not pass
    gap: float = 0.0  # distance from the limit (natural logarithm)
    error: float = 0.0  # standard error of the distance
    rerun_helps: bool = True  # whether more repeats can decide an unknown result
    code: Code | None = None  # code of an unknown result


class NotApplicable(NamedTuple):
    """Why a criterion does not apply. A pass without a `notable` criterion gets its reason."""

    reason: str
    notable: bool = False


class Limits(NamedTuple):
    """The limits for one host, from the values of the others. Slowdowns are natural logarithms."""

    center: float  # median level
    center_error: float  # standard error of the median
    natural_spread: float  # standard deviation of healthy devices without the measuring error
    sigmas: float  # number of standard deviations that a healthy value does not exceed
    least: float  # the limit if values differed only by the measuring error
    limit: float  # largest slowdown of a healthy device
    ideal: float  # the same limit with an infinite number of other values
    rerun_helps: bool  # whether more repeats can make a relevant slowdown visible


class Comparison(NamedTuple):
    """A sample compared with other values."""

    outcome: Outcome  # `pass`, `fail` or `unknown`
    center: float  # median level of the others
    slowdown: float  # against the median; negative if the sample is faster
    limit: float  # largest slowdown of a healthy device
    error: float  # standard error of the slowdown
    fast: bool  # whether the sample is faster than healthy devices are
    insensitive: bool  # whether a slowdown of `blind_percent` could not be detected
    noisy: bool  # whether the measurement is a cause of that, so that more repeats may help
    outlier: bool  # whether the sample is slower or faster by more than `blind_percent`
    rerun_helps: bool  # whether more repeats can decide


def percent(slowdown: float) -> float:
    """Return a slowdown in percent."""
    return 100 * math.expm1(slowdown)


@lru_cache(maxsize=1024)
def compute_limits(others: Spread, usual_error: float, chance: float, settings: JudgingSettings) -> Limits:
    """Return the limits.

    Args:
        usual_error: The part of that spread that comes from the measurement.
        chance: Accepted probability that a healthy value fails.
    """
    natural_spread = math.sqrt(max(0.0, others.sigma**2 - usual_error**2))
    sigmas = multiplier(chance, others.size)
    least = max(math.log1p(settings.smallest_slowdown_percent / 100), 2 * usual_error)
    ideal = NormalDist().inv_cdf(1 - chance) * natural_spread
    return Limits(
        center=others.center,
        center_error=MEDIAN_ERROR * others.sigma / math.sqrt(others.size),
        natural_spread=natural_spread,
        sigmas=sigmas,
        least=least,
        limit=max(least, sigmas * natural_spread),
        ideal=max(least, ideal),
        rerun_helps=ideal < math.log1p(settings.blind_percent / 100),
    )


def compare(sample: Sample, limits: Limits, settings: JudgingSettings) -> Comparison:
    """Compare a sample with other values."""
    error = math.hypot(sample.error, limits.center_error)
    fail_from = max(limits.limit + error, limits.sigmas * math.hypot(error, limits.natural_spread))
    slowdown = limits.center - sample.level
    relevant = math.log1p(settings.blind_percent / 100)
    insensitive = limits.limit + error > relevant
    unclear = insensitive or slowdown > limits.ideal - error
    return Comparison(
        outcome="fail" if slowdown >= fail_from else "unknown" if unclear else "pass",
        center=limits.center,
        slowdown=slowdown,
        limit=limits.limit,
        error=error,
        fast=-slowdown >= fail_from,
        insensitive=insensitive,
        noisy=limits.least + sample.error > relevant or sample.error > _RELEVANT_ERROR_SHARE * limits.natural_spread,
        outlier=abs(slowdown) > relevant,
        rerun_helps=limits.rerun_helps,
    )


def floor_criterion(floor: Floor, better: str) -> Callable[[Sample], CriterionResult]:
    """Return the comparison with the floor and the peak of the model."""
    level, peak = (math.log(value) if better == "higher" else -math.log(value) for value in (floor.value, floor.peak))
    source = f"floor: {floor.text()}"
    passed = CriterionResult("pass", level, source)

    def criterion(sample: Sample) -> CriterionResult:
        gap = level - sample.level
        if sample.level > peak + math.log(_MAX_PEAK_SHARE):
            reason = f"above the published peak of {floor.peak:g}: the measurement is wrong, or the model is another one"
            return CriterionResult("unknown", level, source, reason, rerun_helps=False)
        if gap <= 0:
            return passed
        text = f"{percent(gap):.1f} % below the floor"
        if gap > 2 * sample.error:
            return CriterionResult("fail", level, source, text)
        return CriterionResult("unknown", level, source, f"{text}, within the noise", gap, sample.error, code="noise")

    return criterion


def peer_criterion(  # noqa: PLR0913, PLR0917 - all inputs of the comparison
    key: GroupKey, samples: Sequence[Sample], history: History, chances: Mapping[str, float], settings: JudgingSettings, unit: str = "hosts"
) -> Criterion:
    """Return the comparison with peers: hosts with the same model and versions in this bench; if they are few, also earlier passes.

    Args:
        chances: Accepted probability of a wrong failure for one comparison, by host.
        unit: What the samples are, in messages.
    """
    hosts = {sample.host for sample in samples}
    earlier = _earlier_peers(key, samples, history) if len(hosts) < settings.minimum_hosts else {}
    count = len(hosts | earlier.keys())
    if count < settings.minimum_hosts:
        hosts_text = f"{count} host{'s' if count != 1 else ''} of {key.model} with these versions"
        too_few = NotApplicable(f"{hosts_text}, {settings.minimum_hosts} are needed to compare peers")
        return lambda _: too_few
    comparisons = _compare_peers(samples, earlier, chances, settings)
    source = f"peers: {count - 1} {unit} of {key.model}" + (f", {len(earlier)} of them in earlier benches" if earlier else "")
    shared = _shared_cause(comparisons, count, settings, unit)
    natural = not shared and _is_homogeneous(comparisons, settings)

    def criterion(sample: Sample) -> CriterionResult | NotApplicable:
        found = comparisons[sample.host, sample.device]
        slow = found.outlier and found.slowdown > 0
        if natural and found.insensitive and found.outcome != "fail" and not found.noisy and not slow:
            size = f"{percent(found.limit + found.error):.0f} %"
            return NotApplicable(f"its peers differ too much: a slowdown of {size} could not be detected", notable=True)
        return _result(found, source, "its peers", shared)

    return criterion


def history_criterion(
    key: GroupKey, samples: Sequence[Sample], history: History, chances: Mapping[str, float], settings: JudgingSettings
) -> Criterion:
    """Return the comparison with the earlier passes of the same device, with the same model and versions."""
    passes = {device: levels for device, levels in _earlier_levels(key, history).items() if len(levels) >= settings.minimum_history}
    deviations = [level - median(levels) for levels in passes.values() for level in levels]
    too_few = NotApplicable(f"fewer than {settings.minimum_history} earlier passes with these versions")
    if len(deviations) < _MIN_EARLIER_VALUES:
        return lambda _: too_few
    # Corrects for the median, which comes from the same few values.
    sigma = spread(deviations).sigma * math.sqrt(settings.minimum_history / (settings.minimum_history - 1))
    usual_error = median([sample.error for sample in samples])
    comparisons: dict[DeviceId, Comparison] = {}
    for sample in samples:
        if sample.key in passes:
            others = Spread(median(passes[sample.key]), sigma, len(deviations))
            limits = compute_limits(others, usual_error, chances[sample.host], settings)
            comparisons[sample.host, sample.device] = compare(sample, limits, settings)
    hosts = len({host for host, _ in comparisons})
    shared = _shared_cause(comparisons, hosts, settings) if hosts >= settings.minimum_hosts else ""

    def criterion(sample: Sample) -> CriterionResult | NotApplicable:
        found = comparisons.get((sample.host, sample.device))
        if found is None:
            return too_few
        if found.insensitive and found.outcome != "fail":
            return NotApplicable("its earlier passes differ too much")
        return _result(found, f"history: {len(passes[sample.key])} passes of {sample.key}", "before", shared)

    return criterion


def _compare_peers(
    samples: Sequence[Sample], earlier: Mapping[str, Sequence[float]], chances: Mapping[str, float], settings: JudgingSettings
) -> dict[DeviceId, Comparison]:
    """Compare each sample with the others; with few hosts, its own host is left out of the others."""
    usual_error = median([sample.error for sample in samples])
    earlier_levels = [level for levels in earlier.values() for level in levels]
    hosts = {sample.host for sample in samples}
    whole = spread([sample.level for sample in samples] + earlier_levels)
    others = dict.fromkeys(hosts, whole)
    failed: set[str] = set()
    while True:
        if len(hosts) <= _MAX_LEAVE_ONE_OUT:
            for host in hosts:
                others[host] = spread([sample.level for sample in samples if sample.host not in failed | {host}] + earlier_levels)
        limits = {host: compute_limits(others[host], usual_error, chances[host], settings) for host in hosts}
        comparisons = {(sample.host, sample.device): compare(sample, limits[sample.host], settings) for sample in samples}
        slow = {host for (host, _), comparison in comparisons.items() if comparison.outcome == "fail"}
        # The spread of few values is not robust, so the failed hosts are left out and the others are compared again.
        if whole.size > MAX_PLAIN_SIZE + 1 or slow <= failed or len(hosts) - len(slow | failed) < settings.minimum_hosts:
            return comparisons
        failed |= slow


def _is_homogeneous(comparisons: Mapping[DeviceId, Comparison], settings: JudgingSettings) -> bool:
    """Return whether few hosts, or few devices, are outliers. Many outliers mean two kinds of devices, one of them faulty."""
    outliers = [device for device, comparison in comparisons.items() if comparison.outlier]
    counts = (len({host for host, _ in outliers}), len({host for host, _ in comparisons})), (len(outliers), len(comparisons))
    return any(some <= 1 or 100 * some <= settings.max_fast_percent * total for some, total in counts)


def _shared_cause(comparisons: Mapping[DeviceId, Comparison], hosts: int, settings: JudgingSettings, unit: str = "hosts") -> str:
    """Return why the samples cannot be compared with each other; empty if they can: with many deviations the healthy ones are unknown."""
    slow = {host for (host, _), comparison in comparisons.items() if comparison.outcome == "fail"}
    fast = {host for (host, _), comparison in comparisons.items() if comparison.fast}
    if 100 * len(slow) > settings.max_slow_percent * hosts:
        return f"{len(slow)} of {hosts} {unit} are too slow: a shared cause is more likely than a fault in each of them"
    if len(fast) > 1 and 100 * len(fast) > settings.max_fast_percent * hosts:
        return f"{len(fast)} of {hosts} {unit} are much faster than the others: it is unknown which of the two kinds is healthy"
    return ""


def _result(found: Comparison, source: str, others: str, shared: str) -> CriterionResult:
    limit = found.center - found.limit
    if shared:
        return CriterionResult("unknown", limit, source, shared, rerun_helps=False, code="shared")
    if found.outcome == "pass":
        return CriterionResult("pass", limit, source)
    difference = f"{abs(percent(found.slowdown)):.1f} % {'slower' if found.slowdown >= 0 else 'faster'} than {others}"
    error = f"{percent(found.error):.2f} %"
    if found.outcome == "fail":
        return CriterionResult(
            "fail", limit, source, f"{difference}; healthy is up to {percent(found.limit):.1f} %, with an error of {error}"
        )
    if found.insensitive:
        cause = "the measurement is too noisy" if found.noisy else "the values differ too much"
        reason = f"{difference}, but a slowdown of {percent(found.limit + found.error):.0f} % could not be detected: {cause}"
        return CriterionResult("unknown", limit, source, reason, 0.0, found.error, found.rerun_helps or found.noisy, "noise")
    reason = f"{difference}: too close to the limit of {percent(found.limit):.1f} % for an error of {error}"
    return CriterionResult("unknown", limit, source, reason, abs(found.limit - found.slowdown), found.error, code="noise")


def _earlier_levels(key: GroupKey, history: History) -> dict[str, list[float]]:
    """Return the levels of earlier passes by device, oldest first."""
    values = history.values.get(Comparable(key.series, key.unit, key.model, key.stack), {})
    return {device: [to_level(value, key.unit, key.better) for _, value in passes] for device, passes in values.items()}


def _earlier_peers(key: GroupKey, samples: Sequence[Sample], history: History) -> dict[str, list[float]]:
    """Return by host the latest levels of devices that passed before; hosts and devices of this bench are left out."""
    devices, hosts = {sample.key for sample in samples}, {sample.host for sample in samples}
    peers: dict[str, list[float]] = {}
    for device, levels in _earlier_levels(key, history).items():
        host = history.records[device][-1].host
        if device not in devices and host not in hosts:
            peers.setdefault(host, []).append(levels[-1])
    return peers
