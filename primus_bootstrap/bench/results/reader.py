"""Read result lines (`primus.result/1`) strictly. An invalid line becomes an `unknown` verdict with file and line number."""

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
MAX_SAMPLES = 200
# A percentage is a share of time that is saved, such as the overlap of computation and communication. Noise may exceed 0 and 100.
MAX_PERCENT = 200.0
# The versions that affect speed. Hosts are peers only if all of them are equal.
STACK = ("torch", "cuda", "rocm", "driver")
# A value may differ from the median of its samples by this share, because producers round.
_ROUNDING = 0.005


class Series(NamedTuple):
    """What was measured; `sizes` is canonical JSON: sorted keys, no blanks."""

    benchmark: str
    metric: str
    sizes: str
    ranks: int

    def text(self) -> str:
        """Return metric, sizes and ranks as text."""
        sizes = " ".join(f"{name}={value}" for name, value in json.loads(self.sizes).items())
        ranks = f"{self.ranks} ranks" if self.ranks != 1 else ""
        return " ".join(part for part in (self.metric, sizes, ranks) if part)


@dataclass(frozen=True, slots=True)
class Result:
    """One measured series on one host or device. `value` is in `unit`; it is None if `error` is set or the result is wrong."""

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
        """Return the key of the device in the history."""
        return device_key(self.serial, self.host, self.device)


@dataclass(frozen=True, slots=True)
class ReadResults:
    """The results of a file, and an `unknown` verdict for each invalid line."""

    results: tuple[Result, ...]
    problems: tuple[Verdict, ...]


class _InvalidLineError(Exception):
    """A line is not a valid result; the message names the field."""


def device_key(serial: str, host: str, device: str) -> str:
    """Return the serial number; for a device without one, host and device name, which do not change with a replacement."""
    return serial or f"{host}:{device}"


def measurable(value: float, unit: str) -> bool:
    """Return whether a value is possible in its unit: above 0; for a percentage below 200."""
    return value < MAX_PERCENT if unit == "%" else value > 0


def canonical(sizes: Mapping[str, Any]) -> str:
    """Return sizes as canonical JSON."""
    return json.dumps(sizes, sort_keys=True, separators=(",", ":"))


def read_results(path: Path, *, host: str = "") -> ReadResults:
    """Read a file of results; `host` is used for lines that name no host."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return ReadResults((), (_unknown(host, "bench_results", str(path), f"cannot read it: {error.strerror or error}"),))
    return parse_lines(data.split(b"\n"), name=str(path), host=host)


def parse_lines(lines: Iterable[bytes], *, name: str, host: str = "") -> ReadResults:
    """Read lines of results; `name` is the file's name in messages."""
    results: list[Result] = []
    problems: list[Verdict] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        data: Any = None
        try:
            data = _load(line)
            results.append(parse_result(data))
        except _InvalidLineError as error:
            fields = data if isinstance(data, dict) else {}
            benchmark, named_host = fields.get("benchmark"), fields.get("host")
            check = f"bench_{benchmark}" if isinstance(benchmark, str) and benchmark else "bench_results"
            problems.append(
                _unknown(named_host if isinstance(named_host, str) and named_host else host, check, f"{name}:{number}", str(error))
            )
    if not results and not problems:
        problems.append(_unknown(host, "bench_results", name, "it contains no result"))
    return ReadResults(tuple(results), tuple(problems))


def parse_result(data: Mapping[str, Any]) -> Result:
    """Read one record.

    Raises:
        _InvalidLineError: A field is missing, has the wrong type, or contradicts another.
    """
    if data.get("schema") != SCHEMA:
        raise _InvalidLineError(f"schema is {data.get('schema')!r}, not {SCHEMA}")
    sizes, versions, time = _field(data, "sizes", dict), _field(data, "versions", dict), _field(data, "time", str)
    result = Result(
        series=Series(_named(data, "benchmark"), _named(data, "metric"), canonical(sizes), _count(data, "ranks", least=1)),
        value=_value(data),
        unit=_field(data, "unit", str),
        better=_better(data),
        host=_subject(_named(data, "host"), sizes),
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
    _check_consistency(result)
    return result


def _subject(host: str, sizes: Mapping[str, Any]) -> str:
    """Return the host that a result is about; for several hosts, the first name and the number of the others, as in "n1,+3"."""
    hosts = sizes.get("hosts", 1)
    return f"{host},+{hosts - 1}" if isinstance(hosts, int) and hosts > 1 else host


def _load(line: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _InvalidLineError(f"is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise _InvalidLineError("is not a JSON object")
    return data


def _no_constant(word: str) -> float:
    raise _InvalidLineError(f"contains {word}, which is not a number")


def _check_consistency(result: Result) -> None:
    """Refuse a record whose fields contradict each other, such as a value that differs from the median of its samples."""
    if result.error:
        if result.value is not None:
            raise _InvalidLineError(f"has a value and an error ({result.error})")
        return
    if result.value is None:
        if result.correct is not False:
            raise _InvalidLineError("has neither a value nor an error")
        return
    if not all(measurable(value, result.unit) for value in (result.value, *result.samples)):
        raise _InvalidLineError(f"value {result.value}, or a sample, is not possible in {result.unit}")
    if len(result.samples) > result.repeats:
        raise _InvalidLineError(f"has {len(result.samples)} samples, but {result.repeats} repeats")
    if result.samples and len(result.samples) == result.repeats:
        middle = statistics.median(result.samples)
        if abs(result.value - middle) > _ROUNDING * abs(middle):
            raise _InvalidLineError(f"value is {result.value}, but the median of its samples is {middle:.6g}")


def _field(data: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    if name not in data:
        raise _InvalidLineError(f"{name} is missing")
    if not isinstance(data[name], kind):
        raise _InvalidLineError(f"{name} is {data[name]!r}, not of type {kind.__name__}")
    return data[name]


def _named(data: Mapping[str, Any], name: str) -> str:
    text: str = _field(data, name, str)
    if not text:
        raise _InvalidLineError(f"{name} is empty")
    return text


def _count(data: Mapping[str, Any], name: str, *, least: int) -> int:
    number: int = _field(data, name, int)
    if isinstance(number, bool) or number < least:
        raise _InvalidLineError(f"{name} is {number!r}, not a whole number from {least}")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _InvalidLineError(f"{name} is {value!r}, not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise _InvalidLineError(f"{name} is too large") from error
    if not math.isfinite(number):
        raise _InvalidLineError(f"{name} is {value!r}, not a finite number")
    return number


def _value(data: Mapping[str, Any]) -> float | None:
    if "value" not in data:
        raise _InvalidLineError("value is missing")
    return None if data["value"] is None else _number("value", data["value"])


def _samples(data: Mapping[str, Any]) -> tuple[float, ...]:
    samples = _field(data, "samples", list)
    if len(samples) > MAX_SAMPLES:
        raise _InvalidLineError(f"samples: {len(samples)}, more than {MAX_SAMPLES}")
    return tuple(_number("samples", sample) for sample in samples)


def _better(data: Mapping[str, Any]) -> Literal["higher", "lower"]:
    if data.get("better") == "higher":
        return "higher"
    if data.get("better") == "lower":
        return "lower"
    raise _InvalidLineError(f"better is {data.get('better')!r}, not higher or lower")


def _correct(data: Mapping[str, Any]) -> bool | None:
    correct = data.get("correct", "missing")
    if correct is not None and not isinstance(correct, bool):
        raise _InvalidLineError(f"correct is {correct!r}, not true, false or null")
    return correct


def _epoch(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise _InvalidLineError(f"time is {text!r}, not ISO 8601") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _unknown(host: str, check: str, where: str, reason: str) -> Verdict:
    return Verdict(
        check=check,
        host=host,
        verdict="unknown",
        expected=f"lines of {SCHEMA}",
        found=where,
        reason=f"{where}: {reason}",
        fix="run the benchmark again; if it writes the same line, install the same version of primus-bootstrap on the host and here",
    )
