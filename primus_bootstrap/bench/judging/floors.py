"""Read the floors of GPU models: the share of the published peak that a healthy device reaches. An unknown model has no floor."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.results.reader import Series

SCHEMA = "primus.floors/1"
SHIPPED = Path(__file__).parents[1] / "data" / "floors.yml"
_RULE_KEYS = {"benchmark", "metric", "sizes", "peak", "share_percent", "why"}
_MODEL_KEYS = {"match", "peaks"}


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


@dataclass(frozen=True, slots=True)
class Model:
    """A device model: a pattern for its names, its peaks as (value, source), and its shares in percent."""

    name: str
    match: re.Pattern[str]
    peaks: Mapping[str, tuple[float, str]]
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """The series that have a floor, and the peak that it is a share of."""

    benchmark: str
    metric: str
    sizes: Mapping[str, Any]
    peak: str
    share: float | str


@dataclass(frozen=True, slots=True)
class Floors:
    """All floors."""

    models: tuple[Model, ...] = ()
    rules: tuple[Rule, ...] = ()

    def find(self, series: Series, model: str) -> Floor | None:
        """Return the floor of a series on a model; None if the data does not contain the model or the sizes."""
        known = next((entry for entry in self.models if entry.match.fullmatch(model)), None)
        rule = next((entry for entry in self.rules if _covers(entry, series)), None)
        if known is None or rule is None or rule.peak not in known.peaks:
            return None
        share = known.shares[rule.share] if isinstance(rule.share, str) else rule.share
        peak, source = known.peaks[rule.peak]
        return Floor(known.name, peak * share / 100, peak, share, source)


def load_floors(path: Path = SHIPPED) -> Floors:
    """Read a file of floors.

    Raises:
        PlanError: It cannot be read, or its content is invalid.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlanError(f"cannot read {path}: {error}", fix=f"write a file like {SHIPPED}") from error
    try:
        return _floors(data)
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise PlanError(f"{path}: {error}", fix=f"correct this entry; the shipped file is an example: {SHIPPED}") from error


def _floors(data: Mapping[str, Any]) -> Floors:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}, not {SCHEMA}")
    sources: Mapping[str, str] = data["sources"]
    models = tuple(_model(name, entry, sources) for name, entry in data["models"].items())
    return Floors(models, tuple(_rule(entry, models) for entry in data["floors"]))


def _model(name: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> Model:
    peaks: dict[str, tuple[float, str]] = {}
    for peak, data in entry["peaks"].items():
        if data["source"] not in sources:
            raise ValueError(f"models.{name}.peaks.{peak}: no such source: {data['source']}")
        peaks[peak] = (_positive(f"models.{name}.peaks.{peak}.value", data["value"]), sources[data["source"]])
    shares = {key: _share(f"models.{name}.{key}", value) for key, value in entry.items() if key not in _MODEL_KEYS}
    return Model(name, re.compile(entry["match"]), peaks, shares)


def _rule(entry: Mapping[str, Any], models: tuple[Model, ...]) -> Rule:
    if set(entry) != _RULE_KEYS:
        raise ValueError(f"floors: an entry has {', '.join(sorted(entry))}; it must have {', '.join(sorted(_RULE_KEYS))}")
    where, share = f"floors: {entry['benchmark']} {entry['peak']}", entry["share_percent"]
    with_peak = [model for model in models if entry["peak"] in model.peaks]
    if not with_peak:
        raise ValueError(f"{where}: no model has this peak")
    if isinstance(share, str):
        without_share = [model.name for model in with_peak if share not in model.shares]
        if without_share:
            raise ValueError(f"{where}: {without_share[0]} has no {share}")
    else:
        share = _share(where, share)
    return Rule(entry["benchmark"], entry["metric"], dict(entry["sizes"]), entry["peak"], share)


def _positive(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{where} is {value!r}, not a number above 0")
    return float(value)


def _share(where: str, value: Any) -> float:
    share = _positive(where, value)
    if share >= 100:
        raise ValueError(f"{where} is {share:g} %: a floor must be below the peak")
    return share


def _covers(rule: Rule, series: Series) -> bool:
    if (rule.benchmark, rule.metric) != (series.benchmark, series.metric):
        return False
    sizes = json.loads(series.sizes)
    return all(name in sizes and _fits(condition, sizes[name]) for name, condition in rule.sizes.items())


def _fits(condition: Any, size: Any) -> bool:
    if isinstance(condition, dict):
        return isinstance(size, int | float) and bool(size >= condition["at_least"])
    if isinstance(condition, list):
        return size in condition
    return bool(size == condition)
