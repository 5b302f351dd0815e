"""The page's parts that grow with the fleet: the map of hosts and checks, and one folded part a host with each verdict and its history."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.bench.report.markup import Markup, join, tag
from primus_bootstrap.bench.report.rows import WORST_FIRST, all_verdicts, by_place, natural, subject, worst_of
from primus_bootstrap.bench.report.svg import sparkline
from primus_bootstrap.core.verdicts import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun, Past, Value
    from primus_bootstrap.bench.report.rows import HostRow
    from primus_bootstrap.core.verdicts import Outcome, Verdict

# What stands in a cell beside its colour; a legend says it in words. Latin characters only: every font has them.
_SIGN: dict[Outcome, str] = {"pass": "ok", "fail": "\u00d7", "unknown": "?", "skipped": "\u2013"}
_HOST = ""


class _Line(NamedTuple):
    """One row of a host's table: what was checked, and by device what came of it."""

    check: str
    subject: str
    unit: str


class _Shown(NamedTuple):
    """What a host's part is made of beside its verdicts; both by (benchmark's check, series)."""

    values: Mapping[tuple[str, str], Sequence[Value]]
    history: Mapping[tuple[str, str], Sequence[Past]]


def heat_map(run: BenchRun, rows: Sequence[HostRow]) -> Markup:
    """Return a table of hosts by checks, the worst hosts first; each cell says the worst of its devices, and how many."""
    checks = sorted({verdict.check for verdict in all_verdicts(run)})
    found: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for host, verdicts in by_place(run).items():
        for verdict in verdicts:
            found[host, verdict.check].append(verdict.verdict)
    head = tag("tr", tag("th", "host", scope="col"), *(tag("th", tag("span", check), scope="col") for check in checks))
    lines = [
        tag(
            "tr",
            tag("th", tag("a", row.host, href=f"#node-{number}"), scope="row", class_=row.verdict),
            *(_cell(found.get((row.host, check), ())) for check in checks),
        )
        for number, row in enumerate(rows)
    ]
    legend = [join([tag("span", _SIGN[word], class_=f"key {word}"), f" {word} "]) for word in WORST_FIRST]
    text = tag("p", *legend, tag("span", "", class_="key none"), " not run. A number: how many of a host's results.", class_="legend")
    return join([text, tag("div", tag("table", tag("thead", head), tag("tbody", *lines), class_="heat"), class_="wide")])


def _cell(outcomes: Sequence[Outcome]) -> Markup:
    if not outcomes:
        return tag("td", class_="none")
    word, counts = worst_of(outcomes), Counter(outcomes)
    said = f"{counts[word]} of {len(outcomes)} {word}" if len(outcomes) > 1 else word
    many = str(counts[word]) if len(outcomes) > 1 and word in ("fail", "unknown") else ""
    return tag("td", _SIGN[word] + many, class_=word, title=said)


def node_sections(run: BenchRun, rows: Sequence[HostRow]) -> Markup:
    """Return one folded part a host; those that fail are open where they are few."""
    verdicts = by_place(run)
    values: dict[str, dict[tuple[str, str], list[Value]]] = defaultdict(lambda: defaultdict(list))
    history: dict[str, dict[tuple[str, str], list[Past]]] = defaultdict(lambda: defaultdict(list))
    for value in run.values:
        values[value.host][f"bench_{value.benchmark}", value.series].append(value)
    for past in run.history:
        if past.points:
            history[past.host][f"bench_{past.benchmark}", past.series].append(past)
    return join([_node(number, row, verdicts[row.host], _Shown(values[row.host], history[row.host])) for number, row in enumerate(rows)])


def _node(number: int, row: HostRow, verdicts: Sequence[Verdict], shown: _Shown) -> Markup:
    counts = " \u00b7 ".join(f"{count} {word}" for word, count in zip(OUTCOMES, row.counts, strict=True) if count)
    about = [tag("b", row.host), " ", tag("span", row.verdict, class_=f"badge {row.verdict}"), f" {counts or 'no verdict: bench it again'}"]
    models = sorted({value.model for values in shown.values.values() for value in values})
    about += [tag("small", " \u00b7 ".join((*models, *([f"gate: {row.decision}"] if row.decision else []))))]
    return tag("details", tag("summary", *about), _verdicts_table(verdicts, shown), id=f"node-{number}", class_="node")


def _verdicts_table(verdicts: Sequence[Verdict], shown: _Shown) -> Markup:
    lines: dict[_Line, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        lines[_Line(verdict.check, subject(verdict), verdict.unit)][verdict.device].append(verdict)
    if not lines:
        return Markup()
    devices = sorted({verdict.device for verdict in verdicts}, key=natural)
    titles = ["check", *(f"device {device}" if device else "host" for device in devices), *(["history"] if shown.history else [])]
    head = tag("thead", tag("tr", *(tag("th", title, scope="col") for title in titles)))
    order = sorted(lines.items(), key=lambda item: (_severity(item[1]), item[0]))
    body = [_line(line, each, devices, shown) for line, each in order]
    return tag("div", tag("table", head, tag("tbody", *body)), class_="wide")


def _severity(devices: Mapping[str, Sequence[Verdict]]) -> int:
    return WORST_FIRST.index(worst_of(verdict.verdict for each in devices.values() for verdict in each))


def _line(line: _Line, found: Mapping[str, Sequence[Verdict]], devices: Sequence[str], shown: _Shown) -> Markup:
    expected = {verdict.expected for each in found.values() for verdict in each}
    about = " ".join(part for part in (expected.pop() if len(expected) == 1 else line.subject, line.unit) if part)
    cells = [tag("td", *(_verdict(verdict) for verdict in found.get(device, ()))) for device in devices]
    history = [tag("td", _history(line, shown), class_="history")] if shown.history else []
    return tag("tr", tag("th", line.check, tag("small", about), scope="row"), *cells, *history)


def _verdict(verdict: Verdict) -> Markup:
    """Return one verdict: its word where it does not pass, and what was found; the reason where the pointer rests."""
    word = "" if verdict.verdict == "pass" and verdict.found else verdict.verdict
    text = " ".join(part for part in (word, verdict.found) if part)
    return tag("span", text, class_=f"v {verdict.verdict}", title=verdict.reason or None)


def _history(line: _Line, shown: _Shown) -> Markup:
    pasts = shown.history.get((line.check, line.subject), ())
    if not pasts:
        return Markup()
    values = shown.values.get((line.check, line.subject), ())
    now = {value.device: value.value for value in values}
    better = next((value.better for value in values), "")
    changes = {past.device: now[past.device] / median(point.value for point in past.points) for past in pasts if past.device in now}
    text = _worst_change(changes, better, max(len(past.points) for past in pasts))
    return join([sparkline(pasts, now, text), tag("small", text)])


def _worst_change(changes: Mapping[str, float], better: str, benches: int) -> str:
    """Say how the device that lost most, or moved most, stands against its own median."""
    earlier = f"{benches} earlier bench{'es' if benches != 1 else ''}"
    if not changes:
        return f"{earlier}, no value now"
    moved = {device: math.log(change) for device, change in changes.items()}
    key = {"higher": lambda device: moved[device], "lower": lambda device: -moved[device], "": lambda device: -abs(moved[device])}[better]
    worst = min(moved, key=key)
    who = f"device {worst}: " if worst else ""
    return f"{who}{100 * (changes[worst] - 1):+.1f} % against {earlier}"
