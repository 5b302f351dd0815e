"""The report of a finished bench as one value. bench.json, the HTML page, JUnit XML and the tables are written from it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from primus_bootstrap.bench.quarantine.decisions import Action, Breaker, Decision
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome, Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA = "primus.bench/1"

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True, slots=True)
class ReportedValue:
    """The value of one series on one host or device."""

    benchmark: str
    series: str  # metric, sizes and ranks, as text
    unit: str
    better: Better  # which direction is better; empty if unknown
    model: str
    stack: str  # the software versions, as text
    host: str
    device: str
    serial: str
    value: float  # in `unit`
    error: float  # standard error of the value's natural logarithm
    repeats: int
    floor: float | None  # in `unit`; None if there is no floor
    verdict: Outcome


class HistoryPoint(NamedTuple):
    """A value of an earlier bench."""

    time: float  # seconds since the epoch (UTC)
    value: float  # the value
    verdict: Outcome  # the verdict of that bench on the whole device


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """The earlier values of one device in one series, oldest first. `host` and `device` are where the device is now."""

    host: str
    device: str
    serial: str
    benchmark: str
    series: str
    unit: str
    points: tuple[HistoryPoint, ...]


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One bench of a cluster. `started` is in seconds since the epoch (UTC); `problems` are files that could not be read."""

    cluster: str
    tier: str
    started: float
    seconds: float
    hosts: tuple[tuple[str, Outcome], ...]
    verdicts: tuple[Verdict, ...]
    values: tuple[ReportedValue, ...] = ()
    history: tuple[DeviceHistory, ...] = ()
    decisions: tuple[Decision, ...] = ()
    breaker: Breaker | None = None
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content of bench.json."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in ("cluster", "tier", "started", "seconds", "problems")},
            "hosts": dict(self.hosts),
            "verdicts": _plain(self.verdicts),
            "values": _plain(self.values),
            "history": _plain(self.history),
            "decisions": _plain(self.decisions, ("host", "action", "reason")),
            "breaker": _plain([self.breaker], ("reason", "since", "hosts", "fix"))[0] if self.breaker else None,
        }


def _plain(records: Sequence[Any], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return flat records as dictionaries. `asdict` copies every value and takes ten times as long, which matters in a large fleet."""
    names = names or tuple(field.name for field in fields(records[0])) if records else ()
    return [{name: getattr(record, name) for name in names} for record in records]


def read_run(path: Path) -> BenchRun:
    """Read bench.json.

    Raises:
        RunError: The file cannot be read, or does not contain a bench.
    """
    try:
        data = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}", fix="name the bench.json of a finished bench") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        fix = "run the bench again: primus-bootstrap bench hosts.yaml"
        raise RunError(f"{path} is damaged or incomplete: it is not JSON: {error}", fix=fix) from error
    return run_from_json(data, name=str(path))


def run_from_json(data: Any, *, name: str = "bench") -> BenchRun:
    """Read the content of bench.json; `name` is the file's name in messages.

    Raises:
        RunError: The data does not follow this schema.
    """
    try:
        return _run(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        fix = "read it with the version of primus-bootstrap that wrote it, or run the bench again"
        raise RunError(f"{name} does not follow {SCHEMA}: {what}", fix=fix) from error


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
        history=tuple(_history(history) for history in data["history"]),
        decisions=tuple(_decision(**decision) for decision in data["decisions"]),
        breaker=_breaker(**breaker) if breaker else None,
        problems=tuple(_text(problem) for problem in data["problems"]),
    )


def _value(data: Mapping[str, Any]) -> ReportedValue:
    floor = None if data["floor"] is None else _number(data["floor"])
    numbers = {"value": _number(data["value"]), "error": _number(data["error"]), "floor": floor}
    return ReportedValue(**{**data, **numbers, "verdict": _outcome(data["verdict"])})


def _history(data: Mapping[str, Any]) -> DeviceHistory:
    points = tuple(HistoryPoint(_number(time), _number(value), _outcome(verdict)) for time, value, verdict in data["points"])
    return DeviceHistory(**{**data, "points": points})


def _decision(*, host: Any, action: Any, reason: Any) -> Decision:
    return Decision(_text(host), cast("Action", _text(action)), _text(reason))


def _breaker(*, reason: Any, since: Any, hosts: Any, fix: Any = "") -> Breaker:
    return Breaker(_text(reason), _number(since), tuple(map(_text, hosts)), fix=_text(fix))


def _outcome(word: Any) -> Outcome:
    """Return the verdict; a word of a later version becomes `unknown`."""
    return word if word in OUTCOMES else "unknown"


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a finite number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
