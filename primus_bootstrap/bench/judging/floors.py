"""Read the floors of GPU models: the share of the published peak that a healthy device reaches. An unknown model has no floor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.structured import Constraint, Issue, read, readable
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from primus_bootstrap.bench.results.reader import Series

SCHEMA = "primus.floors/1"
SHIPPED = Path(__file__).parents[1] / "data" / "floors.yml"


def _is_regular_expression(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


_PATTERN = Constraint("a regular expression", _is_regular_expression)
_ABOVE_ZERO = Constraint("a number above 0", lambda value: value > 0)
_SHARE = Constraint("a percentage above 0 and below 100", lambda value: 0 < value < 100)


@dataclass(frozen=True, slots=True)
class Floor:
    """The least value of a series on a model, and the published peak, both in the unit of the metric."""

    model: str
    value: float
    peak: float
    share_percent: float
    source: str

    def text(self) -> str:
        """Return where the floor comes from."""
        return f"{self.share_percent:g} % of the {self.peak:g} that {self.model} has at most ({self.source})"


@readable
@dataclass(frozen=True, slots=True)
class Peak:
    """A published peak; `source` is a key of the file's sources."""

    value: Annotated[float, _ABOVE_ZERO]
    source: str


@readable
@dataclass(frozen=True, slots=True)
class FloorModel:
    """A device model: a pattern for its names, its peaks, and the share of large matrix products."""

    match: Annotated[str, _PATTERN]
    peaks: Mapping[str, Peak]
    gemm_share_percent: Annotated[float, _SHARE]


@readable
@dataclass(frozen=True, slots=True)
class AtLeast:
    """A condition for a size: it has this value or a larger one."""

    at_least: float


@readable
@dataclass(frozen=True, slots=True)
class FloorRule:
    """The series that have a floor, and the peak that it is a share of."""

    benchmark: str
    metric: str
    sizes: Mapping[str, int | str | tuple[str, ...] | AtLeast]  # a value, one of several values, or a minimum
    peak: str
    share_percent: Annotated[float, _SHARE] | Literal["gemm_share_percent"]  # the word: the share of the model
    why: str


@readable
@dataclass(frozen=True, slots=True)
class Floors:
    """All floors: the content of the file."""

    sources: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, FloorModel] = field(default_factory=dict)
    floors: tuple[FloorRule, ...] = ()

    def issues(self) -> Iterable[Issue]:
        """Yield sources and peaks that do not exist."""
        for name, model in self.models.items():
            for peak, entry in model.peaks.items():
                if entry.source not in self.sources:
                    where = f"models.{name}.peaks.{peak}.source"
                    yield Issue(where, f"no such source: {entry.source}", did_you_mean(entry.source, self.sources))
        peaks = {peak for model in self.models.values() for peak in model.peaks}
        for number, rule in enumerate(self.floors):
            if peaks and rule.peak not in peaks:  # without models, they have mistakes of their own
                yield Issue(f"floors[{number}].peak", f"no model has the peak {rule.peak}", did_you_mean(rule.peak, peaks))

    def find(self, series: Series, model: str) -> Floor | None:
        """Return the floor of a series on a model; None if the data does not contain the model or the sizes."""
        name, known = next(((name, entry) for name, entry in self.models.items() if re.fullmatch(entry.match, model)), ("", None))
        rule = next((entry for entry in self.floors if _covers(entry, series)), None)
        if known is None or rule is None or rule.peak not in known.peaks:
            return None
        share = known.gemm_share_percent if rule.share_percent == "gemm_share_percent" else rule.share_percent
        peak = known.peaks[rule.peak]
        return Floor(name, peak.value * share / 100, peak.value, share, self.sources[peak.source])


def load_floors(path: Path = SHIPPED) -> Floors:
    """Read a file of floors.

    Raises:
        PlanError: It cannot be read.
        InvalidDataError: Its content is invalid; with all mistakes.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlanError(f"cannot read {path}: {error}", fix=f"write a file like {SHIPPED}") from error
    return read(Floors, data, origin=str(path), schema=SCHEMA)


def _covers(rule: FloorRule, series: Series) -> bool:
    if (rule.benchmark, rule.metric) != (series.benchmark, series.metric):
        return False
    sizes = json.loads(series.sizes)
    return all(name in sizes and _fits(condition, sizes[name]) for name, condition in rule.sizes.items())


def _fits(condition: int | str | tuple[str, ...] | AtLeast, size: Any) -> bool:
    if isinstance(condition, AtLeast):
        return isinstance(size, int | float) and size >= condition.at_least
    if isinstance(condition, tuple):
        return size in condition
    return bool(size == condition)
