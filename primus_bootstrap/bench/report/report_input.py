"""From what judging and history say to the values of a report. They come as plain data of these shapes; nothing is judged again here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from primus_bootstrap.bench.report.bench_report import Better, Past, Point, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.core.verdicts import Outcome

# The versions of a stack, in the order in which a result is judged by them.
STACK = ("torch", "cuda", "rocm", "driver")


class _Series(Protocol):
    @property
    def benchmark(self) -> str: ...

    def text(self) -> str: ...


class _Judged(Protocol):
    """A judged value."""

    @property
    def series(self) -> _Series: ...
    @property
    def unit(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def stack(self) -> tuple[str, ...]: ...
    @property
    def host(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def serial(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def error(self) -> float: ...
    @property
    def repeats(self) -> int: ...
    @property
    def floor(self) -> float | None: ...
    @property
    def verdict(self) -> Outcome: ...


class _Earlier(Protocol):
    """A value in a record."""

    @property
    def series(self) -> _Series: ...
    @property
    def unit(self) -> str: ...
    @property
    def value(self) -> float: ...


class _Record(Protocol):
    """What an earlier bench said of one device."""

    @property
    def time(self) -> float: ...
    @property
    def verdict(self) -> Outcome: ...
    @property
    def values(self) -> Sequence[_Earlier]: ...


def report_values(judged: Iterable[_Judged], better: Mapping[tuple[str, str], Better]) -> tuple[Value, ...]:
    """Return the values of a report; `better` says of (benchmark, series) which way is better."""
    return tuple(
        Value(
            benchmark=each.series.benchmark,
            series=each.series.text(),
            unit=each.unit,
            better=better.get((each.series.benchmark, each.series.text()), ""),
            model=each.model,
            stack=", ".join(f"{name} {version}" for name, version in zip(STACK, each.stack, strict=True) if version),
            host=each.host,
            device=each.device,
            serial=each.serial,
            value=each.value,
            error=each.error,
            repeats=each.repeats,
            floor=each.floor,
            verdict=each.verdict,
        )
        for each in judged
    )


def report_history(values: Iterable[Value], records: Mapping[str, Sequence[_Record]]) -> tuple[Past, ...]:
    """Return what each value's device showed in the same series before; `records` are by serial, or host:device where there is none."""
    points: dict[tuple[str, str, str, str], list[Point]] = {}
    for key, each in records.items():
        for record in each:
            for past in record.values:
                place = key, past.series.benchmark, past.series.text(), past.unit
                points.setdefault(place, []).append(Point(record.time, past.value, record.verdict))
    found = []
    for value in values:
        before = points.get((value.serial or f"{value.host}:{value.device}", value.benchmark, value.series, value.unit))
        if before:
            ordered = tuple(sorted(before))
            found.append(Past(value.host, value.device, value.serial, value.benchmark, value.series, value.unit, ordered))
    return tuple(found)
