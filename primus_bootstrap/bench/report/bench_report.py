"""A finished bench as one value: what was judged, measured and decided. Every report is drawn from it and from nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome, Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA = "primus.bench/1"

# The gate's word for a host with which nothing is done.
LEAVE = "leave"

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True, slots=True)
class Value:
    """What was measured in one series on one host or device.

    `series` is the series as people read it: metric, sizes, ranks; `stack` the versions that it ran on, likewise. `value` and `floor` are
    in `unit`; `floor` is None where there is none. `error` is the standard error of the value's natural logarithm. `better` is empty
    where nobody said.
    """

    benchmark: str
    series: str
    unit: str
    better: Better
    model: str
    stack: str
    host: str
    device: str
    serial: str
    value: float
    error: float
    repeats: int
    floor: float | None
    verdict: Outcome


class Point(NamedTuple):
    """A value of an earlier bench: when (seconds since the epoch, UTC), how much, and what that bench said of the device as a whole."""

    time: float
    value: float
    verdict: Outcome


@dataclass(frozen=True, slots=True)
class Past:
    """What one device showed in one series before, oldest first; `host` and `device` are where it sits now."""

    host: str
    device: str
    serial: str
    benchmark: str
    series: str
    unit: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate decided about a host: `action` is its word (quarantine, release, hold, leave)."""

    host: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class Breaker:
    """Why no host is quarantined any more until a person resets it. `since` is seconds since the epoch (UTC)."""

    reason: str
    since: float
    hosts: tuple[str, ...]
    fix: str = ""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One bench of a cluster. `started` is seconds since the epoch (UTC); `problems` are files that could not be read as a whole."""

    cluster: str
    tier: str
    started: float
    seconds: float
    hosts: tuple[tuple[str, Outcome], ...]
    verdicts: tuple[Verdict, ...]
    values: tuple[Value, ...] = ()
    history: tuple[Past, ...] = ()
    decisions: tuple[Decision, ...] = ()
    breaker: Breaker | None = None
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in ("cluster", "tier", "started", "seconds", "problems")},
            "hosts": dict(self.hosts),
            "verdicts": _plain(self.verdicts),
            "values": _plain(self.values),
            "history": _plain(self.history),
            "decisions": _plain(self.decisions),
            "breaker": asdict(self.breaker) if self.breaker else None,
        }


def _plain(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Return flat records as dictionaries; `asdict` copies each value and takes ten times as long, which a large fleet shows."""
    names = tuple(field.name for field in fields(records[0])) if records else ()
    return [{name: getattr(record, name) for name in names} for record in records]


def read_run(path: Path) -> BenchRun:
    """Read a bench back.

    Raises:
        RunError: The file cannot be read, or holds no bench.
    """
    try:
        data = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}", fix="name the bench.json of a bench that ended") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise RunError(f"{path}: is no JSON: {error}", fix="bench again; the file was damaged or never written to its end") from error
    return run_from_json(data, name=str(path))


def run_from_json(data: Any, *, name: str = "bench") -> BenchRun:
    """Read a bench from plain data; `name` is what the file is called in messages.

    Raises:
        RunError: It is no bench of this schema.
    """
    try:
        return _run(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        fix = "read it with the version of this program that wrote it, or bench again"
        raise RunError(f"{name}: is no {SCHEMA}: {what}", fix=fix) from error


def _run(data: Mapping[str, Any]) -> BenchRun:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}")
    breaker = data["breaker"]
    return BenchRun(
        cluster=_text(data["cluster"]),
        tier=_text(data["tier"]),
        started=_number(data["started"]),
        seconds=_number(data["seconds"]),
        hosts=tuple((host, _outcome(outcome)) for host, outcome in data["hosts"].items()),
        verdicts=tuple(parse_verdict(verdict) for verdict in data["verdicts"]),
        values=tuple(_value(value) for value in data["values"]),
        history=tuple(_past(past) for past in data["history"]),
        decisions=tuple(Decision(**decision) for decision in data["decisions"]),
        breaker=Breaker(**{**breaker, "since": _number(breaker["since"]), "hosts": tuple(breaker["hosts"])}) if breaker else None,
        problems=tuple(_text(problem) for problem in data["problems"]),
    )


def _value(data: Mapping[str, Any]) -> Value:
    floor = None if data["floor"] is None else _number(data["floor"])
    numbers = {"value": _number(data["value"]), "error": _number(data["error"]), "floor": floor}
    return Value(**{**data, **numbers, "verdict": _outcome(data["verdict"])})


def _past(data: Mapping[str, Any]) -> Past:
    points = tuple(Point(_number(time), _number(value), _outcome(verdict)) for time, value, verdict in data["points"])
    return Past(**{**data, "points": points})


def _outcome(word: Any) -> Outcome:
    """Return a verdict's word; one that is not known says nothing, which is `unknown`."""
    return word if word in OUTCOMES else "unknown"


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no finite number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
