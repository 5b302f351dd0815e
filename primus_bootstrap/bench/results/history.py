"""What was measured before: an append-only file of JSON lines, one a device and bench, found again by the device's serial.

A record holds the verdict, what it ran with (driver, firmware, kernel, profile digest) and the values. Only passes are compared with.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from primus_bootstrap.bench.results.reader import Series, device_key, measurable
from primus_bootstrap.core.atomic_files import write_all
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SCHEMA = "primus.bench-history/1"
_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a device ran with; "" where it is not known or there is none. `profile` is a digest."""

    driver: str = ""
    firmware: str = ""
    kernel: str = ""
    profile: str = ""


class Changed(NamedTuple):
    """How two fingerprints differ: the names that do, and those of which one side is not known."""

    differs: tuple[str, ...]
    unknown: tuple[str, ...]

    def __bool__(self) -> bool:
        """Return whether a new bench is due: what is not known may have changed."""
        return bool(self.differs or self.unknown)


class Past(NamedTuple):
    """A value measured before; `error` is the standard error of its natural logarithm."""

    series: Series
    unit: str
    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Record:
    """What one bench said of one device; `device` is empty for what is measured of the host as a whole."""

    serial: str
    host: str
    device: str
    model: str
    stack: tuple[str, ...]
    time: float
    verdict: Outcome
    fingerprint: Fingerprint
    values: tuple[Past, ...]

    @property
    def key(self) -> str:
        """Return what the device is found by."""
        return device_key(self.serial, self.host, self.device)


class Comparable(NamedTuple):
    """What two values must have in common to be compared."""

    series: Series
    unit: str
    model: str
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All records, oldest first by device, and what of the file could not be read (file:line: why).

    `values` are those of passes, as (host, value), oldest first: by what makes them comparable, then by device.
    """

    records: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    values: Mapping[Comparable, Mapping[str, Sequence[tuple[str, float]]]] = field(default_factory=dict)

    def passes(self, key: str) -> tuple[Record, ...]:
        """Return a device's passing records, oldest first."""
        return tuple(record for record in self.records.get(key, ()) if record.verdict == "pass")

    def last_pass(self, key: str) -> Record | None:
        """Return a device's latest passing record."""
        return next(iter(reversed(self.passes(key))), None)


def make_history(records: Iterable[Record], problems: Sequence[str] = ()) -> History:
    """Return a history of records, whatever their order."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.key].append(record)
    ordered = {key: tuple(sorted(each, key=lambda record: record.time)) for key, each in found.items()}
    values: dict[Comparable, dict[str, list[tuple[str, float]]]] = defaultdict(dict)
    for key, each in ordered.items():
        for record in each:
            for past in record.values if record.verdict == "pass" else ():
                kind = Comparable(past.series, past.unit, record.model, record.stack)
                values[kind].setdefault(key, []).append((record.host, past.value))
    return History(ordered, tuple(problems), dict(values))


def changed(before: Fingerprint, now: Fingerprint) -> Changed:
    """Return how what a device runs with differs from before."""
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in Fingerprint.__slots__]
    differs = tuple(name for name, old, new in pairs if old and new and old != new)
    return Changed(differs, tuple(name for name, old, new in pairs if bool(old) != bool(new)))


def read_history(path: Path) -> History:
    """Read a history; a file that does not exist yet is an empty one, and a damaged line is said and passed over.

    Raises:
        RunError: The file exists and cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}", fix="make it readable; without it no device has a history") from error
    records: list[Record] = []
    problems: list[str] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(_record(json.loads(line.decode("utf-8"))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{path}:{number}: is no record of {SCHEMA}: {error}")
    return make_history(records, problems)


def append_history(path: Path, records: Sequence[Record]) -> None:
    """Append records, all or none; after a line that a killed writer left unfinished they start on a line of their own.

    Raises:
        RunError: They cannot be written; the file is as it was.
    """
    if not records:
        return
    payload = "".join(json.dumps(_to_json(record), separators=(",", ":")) + "\n" for record in records).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _append(descriptor, payload)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written: {error.strerror}", fix="make room or mend its permissions, and bench again; nothing was added"
        ) from error


def _append(descriptor: int, payload: bytes) -> None:
    end = os.fstat(descriptor).st_size
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        payload = b"\n" + payload
    try:
        write_all(descriptor, payload)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "serial": record.serial,
        "host": record.host,
        "device": record.device,
        "model": record.model,
        "stack": record.stack,
        "time": record.time,
        "verdict": record.verdict,
        **{name: getattr(record.fingerprint, name) for name in Fingerprint.__slots__},
        "values": [[*value.series, value.unit, value.value, value.error] for value in record.values],
    }


def _record(data: Any) -> Record:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}")
    if data["verdict"] not in OUTCOMES:
        raise ValueError(f"verdict is {data['verdict']!r}")
    return Record(
        serial=_text(data["serial"]),
        host=_text(data["host"]),
        device=_text(data["device"]),
        model=_text(data["model"]),
        stack=tuple(_text(each) for each in data["stack"]),
        time=float(data["time"]),
        verdict=data["verdict"],
        fingerprint=Fingerprint(**{name: _text(data[name]) for name in Fingerprint.__slots__}),
        values=tuple(_past(each) for each in data["values"]),
    )


def _past(fields: Sequence[Any]) -> Past:
    benchmark, metric, sizes, ranks, unit, value, error = fields
    if not (measurable(value, unit) and error >= 0):
        raise ValueError(f"{benchmark} {metric}: value {value}, error {error}")
    return Past(Series(_text(benchmark), _text(metric), _text(sizes), ranks), _text(unit), float(value), float(error))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
