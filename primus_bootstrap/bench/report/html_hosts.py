"""Prepare the parts of the HTML page that grow with the fleet: the heat map, the drawings, and one part for each host."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.judging.verdicts import WORST_FIRST, worst_of
from primus_bootstrap.bench.name_list import first_names
from primus_bootstrap.bench.report.drawings import distribution, number, sparkline
from primus_bootstrap.bench.report.rows import all_verdicts, by_place, natural, place, subject
from primus_bootstrap.core.verdicts import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun, DeviceHistory, ReportedValue
    from primus_bootstrap.bench.report.drawings import Distribution, Sparkline
    from primus_bootstrap.bench.report.rows import HostRow
    from primus_bootstrap.core.verdicts import Outcome, Verdict


class Cell(NamedTuple):
    """A host and a check in the heat map: the worst verdict of the host's devices."""

    verdict: Outcome
    number: str
    title: str


class Figure(NamedTuple):
    """The values of one series with the same model and versions, drawn and in words."""

    title: str
    about: str
    drawing: Distribution
    text: str
    not_passing: str


class CheckLine(NamedTuple):
    """One line of a host's table: a check, and its verdicts by device in the order of the columns."""

    check: str
    about: str
    cells: tuple[tuple[Verdict, ...], ...]
    history: Sparkline | None


class HostPart(NamedTuple):
    """One host with all its verdicts."""

    row: HostRow
    counts: str
    facts: str
    devices: tuple[str, ...]
    with_history: bool
    lines: tuple[CheckLine, ...]


class _LineKey(NamedTuple):
    check: str
    subject: str
    unit: str


@dataclass(frozen=True, slots=True)
class _HostData:
    """The verdicts of a host, and its values and histories by check and series."""

    verdicts: Sequence[Verdict]
    values: Mapping[tuple[str, str], Sequence[ReportedValue]]
    histories: Mapping[tuple[str, str], Sequence[DeviceHistory]]


def heat_map(run: BenchRun) -> dict[tuple[str, str], Cell]:
    """Return the cells of the heat map by host and check; a check that did not run has none."""
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for verdict in all_verdicts(run):
        outcomes[place(verdict), verdict.check].append(verdict.verdict)
    return {key: _cell(found) for key, found in outcomes.items()}


def _cell(outcomes: Sequence[Outcome]) -> Cell:
    word, counts = worst_of(outcomes), Counter(outcomes)
    if len(outcomes) == 1:
        return Cell(word, "", word)
    return Cell(word, str(counts[word]) if word in ("fail", "unknown") else "", f"{counts[word]} of {len(outcomes)} {word}")


def figures(values: Sequence[ReportedValue]) -> list[Figure]:
    """Return one figure for each series, model and set of versions."""
    groups: dict[tuple[str, ...], list[ReportedValue]] = defaultdict(list)
    for value in values:
        groups[value.benchmark, value.series, value.model, value.unit, value.stack].append(value)
    return [_figure(members) for _, members in sorted(groups.items())]


def _figure(values: Sequence[ReportedValue]) -> Figure:
    first = values[0]
    better = {"higher": "higher is better", "lower": "lower is better", "": ""}[first.better]
    levels = [value.value for value in values]
    hosts = len({value.host for value in values})
    levels_text = f"lowest {number(min(levels))}, median {number(median(levels))}, highest {number(max(levels))} {first.unit}"
    floor = "no floor" if first.floor is None else f"floor {number(first.floor)}"
    return Figure(
        title=f"{first.benchmark}: {first.series}",
        about=" · ".join(part for part in (first.model, f"{first.unit}, {better}".strip(", "), first.stack) if part),
        drawing=distribution(values),
        text=f"{len(values)} values of {hosts} hosts: {levels_text}; {floor}.",
        not_passing=_not_passing(values),
    )


def _not_passing(values: Sequence[ReportedValue]) -> str:
    names = [
        f"{value.host}{f' device {value.device}' if value.device else ''} {number(value.value)} ({value.verdict})"
        for word in ("fail", "unknown")
        for value in values
        if value.verdict == word
    ]
    return f" Not passing: {first_names(names)}." if names else ""


def host_parts(run: BenchRun, rows: Sequence[HostRow]) -> list[HostPart]:
    """Return one part for each host, in the order of the rows."""
    verdicts = by_place(run)
    values: dict[str, dict[tuple[str, str], list[ReportedValue]]] = defaultdict(lambda: defaultdict(list))
    histories: dict[str, dict[tuple[str, str], list[DeviceHistory]]] = defaultdict(lambda: defaultdict(list))
    for value in run.values:
        values[value.host][f"bench_{value.benchmark}", value.series].append(value)
    for history in run.history:
        if history.points:
            histories[history.host][f"bench_{history.benchmark}", history.series].append(history)
    return [_host_part(row, _HostData(verdicts[row.host], values[row.host], histories[row.host])) for row in rows]


def _host_part(row: HostRow, data: _HostData) -> HostPart:
    models = sorted({value.model for values in data.values.values() for value in values})
    lines: dict[_LineKey, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in data.verdicts:
        lines[_LineKey(verdict.check, subject(verdict), verdict.unit)][verdict.device].append(verdict)
    devices = tuple(sorted({verdict.device for verdict in data.verdicts}, key=natural))
    ordered = sorted(lines.items(), key=lambda item: (_severity(item[1]), item[0]))
    return HostPart(
        row=row,
        counts=" · ".join(f"{count} {word}" for word, count in zip(OUTCOMES, row.counts, strict=True) if count),
        facts=" · ".join((*models, *([f"gate: {row.decision}"] if row.decision else []))),
        devices=devices,
        with_history=bool(data.histories),
        lines=tuple(_line(key, by_device, devices, data) for key, by_device in ordered),
    )


def _severity(by_device: Mapping[str, Sequence[Verdict]]) -> int:
    return WORST_FIRST.index(worst_of(verdict.verdict for verdicts in by_device.values() for verdict in verdicts))


def _line(key: _LineKey, by_device: Mapping[str, Sequence[Verdict]], devices: Sequence[str], data: _HostData) -> CheckLine:
    expected = {verdict.expected for verdicts in by_device.values() for verdict in verdicts}
    about = " ".join(part for part in (expected.pop() if len(expected) == 1 else key.subject, key.unit) if part)
    return CheckLine(key.check, about, tuple(tuple(by_device.get(device, ())) for device in devices), _history(key, data))


def _history(key: _LineKey, data: _HostData) -> Sparkline | None:
    histories = data.histories.get((key.check, key.subject), ())
    if not histories:
        return None
    values = data.values.get((key.check, key.subject), ())
    current = {value.device: value.value for value in values}
    better = next((value.better for value in values), "")
    changes = {
        history.device: current[history.device] / median(point.value for point in history.points)
        for history in histories
        if history.device in current
    }
    text = _worst_change(changes, better, max(len(history.points) for history in histories))
    return sparkline(histories, current, text)


def _worst_change(changes: Mapping[str, float], better: str, benches: int) -> str:
    """Return the change of the device that lost most; where no direction is better, of the one that changed most.

    Args:
        changes: The current value by device, as a share of the median of its earlier values.
        better: `higher`, `lower`, or empty.
    """
    earlier = f"{benches} earlier bench{'es' if benches != 1 else ''}"
    if not changes:
        return f"{earlier}, no value now"
    logs = {device: math.log(change) for device, change in changes.items()}
    key = {"higher": lambda device: logs[device], "lower": lambda device: -logs[device], "": lambda device: -abs(logs[device])}[better]
    worst = min(logs, key=key)
    return f"{f'device {worst}: ' if worst else ''}{100 * (changes[worst] - 1):+.1f} % against {earlier}"
