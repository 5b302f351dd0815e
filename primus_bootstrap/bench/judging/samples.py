"""Who is compared with whom: results in groups of one series, model and versions, and what each host or device measured in them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.judging.statistics import MEDIAN_ERROR, noise
from primus_bootstrap.bench.results.reader import Result, Series, device_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A device whose samples scatter this many times as much as the others' is given its own noise, not the common one.
_RESTLESS = 2.0

Place = tuple[str, str]


class GroupKey(NamedTuple):
    """What makes results comparable: the series, and the model and the versions that it ran on."""

    series: Series
    unit: str
    better: str
    model: str
    stack: tuple[str, ...]


class Sample(NamedTuple):
    """One host or device in a group, all its runs together.

    `level` is a natural logarithm, of which more is better always (see `to_level`). `error` is its standard error.
    """

    host: str
    device: str
    serial: str
    value: float
    level: float
    error: float
    repeats: int
    runs: int
    started: float
    seconds: float

    @property
    def key(self) -> str:
        """Return what the history knows the device by."""
        return device_key(self.serial, self.host, self.device)


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Results by what they are good for: groups of values, wrong results, and errors that no later run has made good."""

    groups: Mapping[GroupKey, Mapping[Place, Sequence[Result]]]
    wrong: tuple[Result, ...]
    errors: tuple[Result, ...]


def sort_results(results: Iterable[Result]) -> SampleSet:
    """Sort results; a line that was read twice counts once."""
    groups: dict[GroupKey, dict[Place, list[Result]]] = defaultdict(dict)
    wrong: dict[tuple[Series, Place], Result] = {}
    errors: dict[tuple[Series, Place], Result] = {}
    for result in results:
        place = result.host, result.device
        if result.error:
            errors[result.series, place] = result
        elif result.correct is False or result.value is None:
            wrong[result.series, place] = result
        else:
            key = GroupKey(result.series, result.unit, result.better, result.model, result.stack)
            runs = groups[key].setdefault(place, [])
            if not any(run.started == result.started and run.samples == result.samples for run in runs):
                runs.append(result)
    left = tuple(result for result in errors.values() if not _made_good(result, groups))
    return SampleSet(groups, tuple(wrong.values()), left)


def _made_good(error: Result, groups: Mapping[GroupKey, Mapping[Place, Sequence[Result]]]) -> bool:
    """Return whether a later run brought a value.

    The metric is "none" where the program failed before its first series: any later value of the benchmark makes that good, and of any
    device where it failed before it had one.
    """
    for key, places in groups.items():
        if key.series != error.series and not (error.series.metric == "none" and key.series.benchmark == error.series.benchmark):
            continue
        where = [place for place in places if place[0] == error.host] if not error.device else [(error.host, error.device)]
        if any(run.started > error.started for place in where for run in places.get(place, ())):
            return True
    return False


def to_level(value: float, unit: str, better: str) -> float:
    """Return the natural logarithm of a speed, or the negated one of a time.

    A share saved in percent is the time that it leaves: of two parts of equal length 0 % takes 2, and 100 % takes 1.
    """
    if unit == "%":
        value = 2 - value / 100
        return -math.log(value) if better == "higher" else math.log(value)
    return math.log(value) if better == "higher" else -math.log(value)


def from_level(level: float, unit: str, better: str) -> float:
    """Return the value of a level."""
    value = math.exp(level if (better == "higher") != (unit == "%") else -level)
    return 100 * (2 - value) if unit == "%" else value


def make_members(key: GroupKey, runs: Mapping[Place, Sequence[Result]]) -> tuple[Sample, ...]:
    """Return the members of a group, with the noise that is common to them: many devices know it better than one."""
    noises = {place: median([_noise(key, run) for run in each]) for place, each in runs.items()}
    common = median(noises.values()) if noises else 0.0
    return tuple(_member(key, place, each, noises[place], common) for place, each in runs.items())


def _member(key: GroupKey, place: Place, runs: Sequence[Result], own: float, common: float) -> Sample:
    last = runs[-1]
    value = _value(runs)
    repeats = sum(run.repeats for run in runs)
    return Sample(
        host=place[0],
        device=place[1],
        serial=last.serial,
        value=value,
        level=to_level(value, key.unit, key.better),
        error=MEDIAN_ERROR * (own if own > _RESTLESS * common else common) / math.sqrt(max(repeats, 1)),
        repeats=repeats,
        runs=len(runs),
        started=max(run.started for run in runs),
        seconds=sum(run.seconds for run in runs),
    )


def _noise(key: GroupKey, run: Result) -> float:
    """Return the standard deviation of a run's level."""
    value = run.value or 0.0
    return noise(run.samples) / (200 - value if key.unit == "%" else value)


def _value(runs: Sequence[Result]) -> float:
    """Return the median over the samples of all runs; without samples, of the runs' values."""
    if len(runs) == 1:
        return runs[0].value or 0.0
    return median([sample for run in runs for sample in (run.samples or (run.value or 0.0,))])
