"""Read `results.jsonl`: lines of `primus.result/1`, strictly. What cannot be read becomes a verdict `unknown` with file:line."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from primus_bootstrap.core.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA = "primus.result/1"
MOST_SAMPLES = 200
# A share that is saved of something, like the overlap of computing and communicating: 100 is all of it, and noise may go beyond or below 0.
MOST_PERCENT = 200.0
# The versions that a speed depends on; hosts are peers only where all of them agree.
STACK = ("torch", "cuda", "rocm", "driver")
# By how much a value may differ from the median of its samples: producers round.
_ROUNDING = 0.005


class Series(NamedTuple):
    """What was measured. `sizes` is canonical JSON: sorted keys, no blanks."""

    benchmark: str
    metric: str
    sizes: str
    ranks: int

    def text(self) -> str:
        """Return the series as people read it."""
        sizes = " ".join(f"{name}={value}" for name, value in json.loads(self.sizes).items())
        ranks = f"{self.ranks} ranks" if self.ranks != 1 else ""
        return " ".join(part for part in (self.metric, sizes, ranks) if part)


@dataclass(frozen=True, slots=True)
class Result:
    """One measured series on one host or device. `value` is in `unit`, and None exactly where `error` says why."""

    series: Series
    value: float | None
    unit: str
    better: Literal["higher", "lower"]
    host: str
    device: str
    model: str
    serial: str
    repeats: int
    samples: tuple[float, ...]
    correct: bool | None
    error: str
    stack: tuple[str, ...]
    time: str
    started: float
    seconds: float

    @property
    def key(self) -> str:
        """Return what the history knows the device by."""
        return device_key(self.serial, self.host, self.device)


@dataclass(frozen=True, slots=True)
class ReadResults:
    """What a file holds: its results, and a verdict `unknown` for each line that is none."""

    results: tuple[Result, ...]
    problems: tuple[Verdict, ...]


class _DamagedError(Exception):
    """A line is no result; the text says which field and why."""


def device_key(serial: str, host: str, device: str) -> str:
    """Return the serial; where a device has none, its place, which a swap of the device does not change."""
    return serial or f"{host}:{device}"


def measurable(value: float, unit: str) -> bool:
    """Return whether a value can be one of its unit: above 0, and a share in percent below 200."""
    return value < MOST_PERCENT if unit == "%" else value > 0


def canonical(sizes: Mapping[str, Any]) -> str:
    """Return sizes as canonical JSON."""
    return json.dumps(sizes, sort_keys=True, separators=(",", ":"))


def read_results(path: Path, *, host: str = "") -> ReadResults:
    """Read a file of results; `host` is who wrote it, for lines that do not say so."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return ReadResults((), (_unknown(host, "bench_results", str(path), f"cannot be read: {error.strerror or error}"),))
    return parse_lines(data.split(b"\n"), name=str(path), host=host)


def parse_lines(lines: Iterable[bytes], *, name: str, host: str = "") -> ReadResults:
    """Read lines of results; `name` is what the file is called in messages."""
    results: list[Result] = []
    problems: list[Verdict] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        data: Any = None
        try:
            data = _load(line)
            results.append(parse_result(data))
        except _DamagedError as error:
            known = data if isinstance(data, dict) else {}
            benchmark, who = known.get("benchmark"), known.get("host")
            check = f"bench_{benchmark}" if isinstance(benchmark, str) and benchmark else "bench_results"
            problems.append(_unknown(who if isinstance(who, str) and who else host, check, f"{name}:{number}", str(error)))
    if not results and not problems:
        problems.append(_unknown(host, "bench_results", name, "holds no result"))
    return ReadResults(tuple(results), tuple(problems))


def parse_result(data: Mapping[str, Any]) -> Result:
    """Read one record.

    Raises:
        _DamagedError: A field is missing, of the wrong type, or contradicts another.
    """
    if data.get("schema") != SCHEMA:
        raise _DamagedError(f"schema is {data.get('schema')!r}, not {SCHEMA}")
    sizes, versions, time = _field(data, "sizes", dict), _field(data, "versions", dict), _field(data, "time", str)
    result = Result(
        series=Series(_named(data, "benchmark"), _named(data, "metric"), canonical(sizes), _count(data, "ranks", least=1)),
        value=_value(data),
        unit=_field(data, "unit", str),
        better=_better(data),
        host=_whose(_named(data, "host"), sizes),
        device=_field(data, "device", str),
        model=_named(data, "model"),
        serial=_field(data, "serial", str),
        repeats=_count(data, "repeats", least=0),
        samples=_samples(data),
        correct=_correct(data),
        error=_field(data, "error", str),
        stack=tuple(str(versions.get(name) or "") for name in STACK),
        time=time,
        started=_epoch(time),
        seconds=_number("seconds", data.get("seconds")),
    )
    _agree(result)
    return result


def _whose(host: str, sizes: Mapping[str, Any]) -> str:
    """Return who is judged by a result: one of several hosts bears the first one's name and how many more, and is nobody's alone."""
    hosts = sizes.get("hosts", 1)
    return f"{host},+{hosts - 1}" if isinstance(hosts, int) and hosts > 1 else host


def _load(line: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _DamagedError(f"is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise _DamagedError("is no JSON object")
    return data


def _no_constant(word: str) -> float:
    raise _DamagedError(f"holds {word}, which is no number")


def _agree(result: Result) -> None:
    """Refuse a record whose fields contradict each other: a value that its samples do not bear out is not believed."""
    if result.error:
        if result.value is not None:
            raise _DamagedError(f"has a value and an error ({result.error})")
        return
    if result.value is None:
        if result.correct is not False:
            raise _DamagedError("has neither a value nor an error")
        return
    if not all(measurable(value, result.unit) for value in (result.value, *result.samples)):
        raise _DamagedError(f"value is {result.value}, or a sample is, what cannot be measured in {result.unit}")
    if len(result.samples) > result.repeats:
        raise _DamagedError(f"has {len(result.samples)} samples of {result.repeats} repeats")
    if result.samples and len(result.samples) == result.repeats:
        middle = statistics.median(result.samples)
        if abs(result.value - middle) > _ROUNDING * abs(middle):
            raise _DamagedError(f"value is {result.value}, but the median of its samples {middle:.6g}")


def _field(data: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    if name not in data:
        raise _DamagedError(f"{name} is missing")
    if not isinstance(data[name], kind):
        raise _DamagedError(f"{name} is {data[name]!r}, not of type {kind.__name__}")
    return data[name]


def _named(data: Mapping[str, Any], name: str) -> str:
    text: str = _field(data, name, str)
    if not text:
        raise _DamagedError(f"{name} is empty")
    return text


def _count(data: Mapping[str, Any], name: str, *, least: int) -> int:
    number: int = _field(data, name, int)
    if isinstance(number, bool) or number < least:
        raise _DamagedError(f"{name} is {number!r}, not a whole number from {least}")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _DamagedError(f"{name} is {value!r}, not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise _DamagedError(f"{name} is too large") from error
    if not math.isfinite(number):
        raise _DamagedError(f"{name} is {value!r}, not a finite number")
    return number


def _value(data: Mapping[str, Any]) -> float | None:
    if "value" not in data:
        raise _DamagedError("value is missing")
    return None if data["value"] is None else _number("value", data["value"])


def _samples(data: Mapping[str, Any]) -> tuple[float, ...]:
    samples = _field(data, "samples", list)
    if len(samples) > MOST_SAMPLES:
        raise _DamagedError(f"samples: {len(samples)}, more than {MOST_SAMPLES}")
    return tuple(_number("samples", sample) for sample in samples)


def _better(data: Mapping[str, Any]) -> Literal["higher", "lower"]:
    if data.get("better") == "higher":
        return "higher"
    if data.get("better") == "lower":
        return "lower"
    raise _DamagedError(f"better is {data.get('better')!r}, not higher or lower")


def _correct(data: Mapping[str, Any]) -> bool | None:
    correct = data.get("correct", "missing")
    if correct is not None and not isinstance(correct, bool):
        raise _DamagedError(f"correct is {correct!r}, not true, false or null")
    return correct


def _epoch(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _DamagedError(f"time is {text!r}, not ISO 8601") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _unknown(host: str, check: str, where: str, reason: str) -> Verdict:
    return Verdict(
        check=check,
        host=host,
        verdict="unknown",
        expected=f"lines of {SCHEMA}",
        found=where,
        reason=f"{where}: {reason}",
        fix="run the benchmark again; where it writes the line again, its program and this one are of different versions",
    )
