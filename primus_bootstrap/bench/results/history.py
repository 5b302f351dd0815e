"""Read and append the history: one JSON line for each device and bench, found by the device's serial number.

A record contains the verdict, the software versions and the values. Only passes are used for comparisons.
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
from primus_bootstrap.core.structured import readable
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SCHEMA = "primus.bench-history/1"
_MODE = 0o600


@readable
@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The software versions of a host; empty where unknown or not installed. `profile` is a digest."""

    driver: str = ""
    firmware: str = ""
    kernel: str = ""
    profile: str = ""


class PastValue(NamedTuple):
    """A value of an earlier bench; `error` is the standard error of its natural logarithm."""

    series: Series
    unit: str
    value: float
    error: float


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """The result of one bench for one device; `device` is empty for values of the whole host."""

    serial: str
    host: str
    device: str
    model: str
    stack: tuple[str, ...]
    time: float
    verdict: Outcome
    fingerprint: Fingerprint
    values: tuple[PastValue, ...]

    @property
    def key(self) -> str:
        """Return the key of the device."""
        return device_key(self.serial, self.host, self.device)


class Comparable(NamedTuple):
    """Two values are comparable if all of this is equal."""

    series: Series
    unit: str
    model: str
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All earlier benches."""

    records: Mapping[str, tuple[DeviceRecord, ...]] = field(default_factory=dict)  # by device key, oldest first
    problems: tuple[str, ...] = ()  # invalid lines of the file, with file name and line number
    # Values of passes as (host, value), oldest first, by device key.
    values: Mapping[Comparable, Mapping[str, Sequence[tuple[str, float]]]] = field(default_factory=dict)


def make_history(records: Iterable[DeviceRecord], problems: Sequence[str] = ()) -> History:
    """Return the history of records in any order."""
    by_device: dict[str, list[DeviceRecord]] = defaultdict(list)
    for record in records:
        by_device[record.key].append(record)
    ordered = {key: tuple(sorted(found, key=lambda record: record.time)) for key, found in by_device.items()}
    values: dict[Comparable, dict[str, list[tuple[str, float]]]] = defaultdict(dict)
    for key, found in ordered.items():
        for record in found:
            for past in record.values if record.verdict == "pass" else ():
                comparable = Comparable(past.series, past.unit, record.model, record.stack)
                values[comparable].setdefault(key, []).append((record.host, past.value))
    return History(ordered, tuple(problems), dict(values))


def read_history(path: Path) -> History:
    """Read the history. A missing file is an empty history; an invalid line is reported as a problem and skipped.

    Raises:
        RunError: The file exists and cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise RunError(
            f"cannot read {path}: {error.strerror}",
            fix=f"make it readable, or move it away to start without a history: mv {path} {path}.old",
        ) from error
    records: list[DeviceRecord] = []
    problems: list[str] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(_record(json.loads(line.decode("utf-8"))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{path}:{number}: not a record of {SCHEMA}: {error}")
    return make_history(records, problems)


def append_history(path: Path, records: Sequence[DeviceRecord]) -> None:
    """Append all records or none. If a killed writer left an incomplete last line, the records start on a new line.

    Raises:
        RunError: They cannot be written; the file is unchanged.
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
            f"cannot write {path}: {error.strerror}", fix="free space there or correct its permissions, then bench again; nothing was added"
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


def _to_json(record: DeviceRecord) -> dict[str, Any]:
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


def _record(data: Any) -> DeviceRecord:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}")
    if data["verdict"] not in OUTCOMES:
        raise ValueError(f"verdict is {data['verdict']!r}")
    return DeviceRecord(
        serial=_text(data["serial"]),
        host=_text(data["host"]),
        device=_text(data["device"]),
        model=_text(data["model"]),
        stack=tuple(_text(version) for version in data["stack"]),
        time=float(data["time"]),
        verdict=data["verdict"],
        fingerprint=Fingerprint(**{name: _text(data[name]) for name in Fingerprint.__slots__}),
        values=tuple(_past_value(value) for value in data["values"]),
    )


def _past_value(fields: Sequence[Any]) -> PastValue:
    benchmark, metric, sizes, ranks, unit, value, error = fields
    if not (measurable(value, unit) and error >= 0):
        raise ValueError(f"{benchmark} {metric}: value {value}, error {error}")
    return PastValue(Series(_text(benchmark), _text(metric), _text(sizes), ranks), _text(unit), float(value), float(error))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
