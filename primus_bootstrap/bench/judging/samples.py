"""Group results that can be compared, and combine the runs of each host or device into one sample."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from primus_bootstrap.bench.judging.statistics import MEDIAN_ERROR, noise
from primus_bootstrap.bench.results.reader import Result, Series, device_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A device gets its own noise instead of the common one if its samples scatter more than this many times as much.
_NOISY_FACTOR = 2.0

# Host and device.
DeviceId = tuple[str, str]


class GroupKey(NamedTuple):
    """Results with the same key are comparable: the same series, model and software versions."""

    series: Series
    unit: str
    better: Literal["higher", "lower"]
    model: str
    stack: tuple[str, ...]


class Sample(NamedTuple):
    """One host or device in a group, all runs combined."""

    host: str
    device: str
    serial: str
    value: float
    level: float  # natural logarithm of the value; more is always better (see `to_level`)
    error: float  # standard error of the level
    repeats: int  # repeats of all runs
    runs: int
    started: float
    seconds: float

    @property
    def key(self) -> str:
        """Return the key of the device in the history."""
        return device_key(self.serial, self.host, self.device)


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Results by kind: values in comparable groups, wrong results, and errors without a later success."""

    groups: Mapping[GroupKey, Mapping[DeviceId, Sequence[Result]]]
    wrong: tuple[Result, ...]
    errors: tuple[Result, ...]


def sort_results(results: Iterable[Result]) -> SampleSet:
    """Sort results by kind; a duplicate line counts once."""
    groups: dict[GroupKey, dict[DeviceId, list[Result]]] = defaultdict(dict)
    wrong: dict[tuple[Series, DeviceId], Result] = {}
    errors: dict[tuple[Series, DeviceId], Result] = {}
    for result in results:
        device = result.host, result.device
        if result.error:
            errors[result.series, device] = result
        elif result.correct is False or result.value is None:
            wrong[result.series, device] = result
        else:
            key = GroupKey(result.series, result.unit, result.better, result.model, result.stack)
            runs = groups[key].setdefault(device, [])
            if not any(run.started == result.started and run.samples == result.samples for run in runs):
                runs.append(result)
    open_errors = tuple(result for result in errors.values() if not _succeeded_later(result, groups))
    return SampleSet(groups, tuple(wrong.values()), open_errors)


def _succeeded_later(error: Result, groups: Mapping[GroupKey, Mapping[DeviceId, Sequence[Result]]]) -> bool:
    """Return whether a later run gave a value.

    A program that failed before its first series writes the metric "none": any later value of the benchmark counts then, and of any
    device if the error names none.
    """
    for key, runs_by_device in groups.items():
        if key.series != error.series and not (error.series.metric == "none" and key.series.benchmark == error.series.benchmark):
            continue
        devices = [(error.host, error.device)] if error.device else [device for device in runs_by_device if device[0] == error.host]
        if any(run.started > error.started for device in devices for run in runs_by_device.get(device, ())):
            return True
    return False


def to_level(value: float, unit: str, better: str) -> float:
    """Return the natural logarithm of a speed, or the negative logarithm of a time.

    A percentage is the share of time that is saved. Its level is that of the remaining time: of two parts of equal length, 0 % takes
    2 and 100 % takes 1.
    """
    if unit == "%":
        value = 2 - value / 100
        return -math.log(value) if better == "higher" else math.log(value)
    return math.log(value) if better == "higher" else -math.log(value)


def from_level(level: float, unit: str, better: str) -> float:
    """Return the value of a level."""
    value = math.exp(level if (better == "higher") != (unit == "%") else -level)
    return 100 * (2 - value) if unit == "%" else value


def make_samples(key: GroupKey, runs: Mapping[DeviceId, Sequence[Result]]) -> tuple[Sample, ...]:
    """Return the samples of a group. The median noise of all devices is more reliable than the noise of one."""
    noises = {device: median([_level_noise(key, run) for run in device_runs]) for device, device_runs in runs.items()}
    common = median(noises.values()) if noises else 0.0
    return tuple(_sample(key, device, device_runs, noises[device], common) for device, device_runs in runs.items())


def _sample(key: GroupKey, device: DeviceId, runs: Sequence[Result], noise_: float, common_noise: float) -> Sample:
    value = _combined_value(runs)
    repeats = sum(run.repeats for run in runs)
    used_noise = noise_ if noise_ > _NOISY_FACTOR * common_noise else common_noise
    return Sample(
        host=device[0],
        device=device[1],
        serial=runs[-1].serial,
        value=value,
        level=to_level(value, key.unit, key.better),
        error=MEDIAN_ERROR * used_noise / math.sqrt(max(repeats, 1)),
        repeats=repeats,
        runs=len(runs),
        started=max(run.started for run in runs),
        seconds=sum(run.seconds for run in runs),
    )


def _level_noise(key: GroupKey, run: Result) -> float:
    """Return the standard deviation of a run's level."""
    value = run.value or 0.0
    return noise(run.samples) / (200 - value if key.unit == "%" else value)


def _combined_value(runs: Sequence[Result]) -> float:
    """Return the median over the samples of all runs; a run without samples counts with its value."""
    if len(runs) == 1:
        return runs[0].value or 0.0
    return median([sample for run in runs for sample in (run.samples or (run.value or 0.0,))])
