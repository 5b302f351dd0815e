"""A bench as one HTML page that needs nothing else: no network, no script, no font, no picture. Every text of the bench is escaped."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from primus_bootstrap.bench.report.bench_report import LEAVE
from primus_bootstrap.bench.report.html_nodes import heat_map, node_sections
from primus_bootstrap.bench.report.markup import Markup, join, tag
from primus_bootstrap.bench.report.rows import (
    WORST_FIRST,
    Finding,
    findings,
    host_rows,
    moment,
    natural,
    place,
    subject,
    summary,
    totals,
    with_unit,
)
from primus_bootstrap.bench.report.svg import distribution, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun, Decision, Value
    from primus_bootstrap.core.verdicts import Outcome, Verdict

_STYLE = Path(__file__).parents[1] / "data" / "report.css"
# The page may load nothing and run nothing, whatever is in it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# A cause with more places than this shows them when asked.
_OPEN_PLACES = 4
_NAMED = 8


def html_text(run: BenchRun) -> str:
    """Return the whole page."""
    rows = host_rows(run)
    numbers = {row.host: place_number for place_number, row in enumerate(rows)}
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", summary(run)),
        tag("style", Markup(_STYLE.read_text("utf-8"))),
    )
    sections = [
        *_alarms(run),
        _section("findings", "What needs a look", _findings(run, numbers)),
        _section("decisions", "Quarantine", _decisions(run)),
        _section("map", "Every host and check", heat_map(run, rows)),
        _section("values", "How the values lie", _distributions(run.values)),
        _section("nodes", "Each host", node_sections(run, rows)),
        _section("less", "What passed with less to hold it against", _causes(run, "pass")),
        _section("skipped", "What was skipped", _causes(run, "skipped")),
    ]
    body = tag("body", _header(run), tag("main", *sections))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(name: str, title: str, content: Markup) -> Markup:
    return tag("section", tag("h2", title), content, id=name) if content else Markup()


def _header(run: BenchRun) -> Markup:
    hosts, verdicts = totals(run)
    minutes = f"{run.seconds / 60:.0f} min" if run.seconds >= 120 else f"{run.seconds:.0f} s"
    facts = f"tier {run.tier} · {moment(run.started).replace('T', ' ')} UTC · took {minutes} · {hosts.total()} hosts"
    counts = [
        tag("li", tag("b", str(hosts[word])), f" {word}", tag("small", f"verdicts: {verdicts[word]}"), class_=f"count {word}")
        for word in WORST_FIRST
    ]
    return tag("header", tag("h1", f"Bench of {run.cluster}"), tag("p", facts), tag("ul", *counts, class_="counts"))


def _alarms(run: BenchRun) -> list[Markup]:
    """Return what a reader must know before all else: an open breaker, and files that could not be read."""
    alarms = []
    if run.breaker:
        hosts = ", ".join(sorted(run.breaker.hosts, key=natural))
        since = f"since {moment(run.breaker.since).replace('T', ' ')} UTC"
        lines = [tag("p", run.breaker.reason), tag("p", f"{since}; hosts: {hosts or 'none named'}")]
        lines += [tag("p", f"fix: {run.breaker.fix}")] if run.breaker.fix else []
        alarms.append(tag("section", tag("h2", "The breaker is open: no host is quarantined"), *lines, class_="alarm", id="breaker"))
    if run.problems:
        items = [tag("li", problem) for problem in run.problems]
        alarms.append(tag("section", tag("h2", "What could not be read"), tag("ul", *items), class_="alarm", id="problems"))
    return alarms


def _findings(run: BenchRun, numbers: dict[str, int]) -> Markup:
    found = findings(run)
    if not found:
        return tag("p", "Nothing failed, and nothing is unknown.")
    rows = [
        tag(
            "tr",
            tag("td", tag("span", finding.verdict, class_=f"badge {finding.verdict}")),
            tag("th", finding.check, scope="row"),
            tag("td", _places(finding, numbers)),
            tag("td", _reason(finding), *([tag("p", f"fix: {finding.fix}", class_="fix")] if finding.fix else [])),
        )
        for finding in found
    ]
    return _table(("verdict", "check", "where, and what was found", "why, and what to do"), rows)


def _places(finding: Finding, numbers: dict[str, int]) -> Markup:
    own = len(finding.reasons) > 1
    items = [tag("li", _link(verdict, numbers), *_compared(verdict, own=own)) for verdict in finding.places]
    if len(items) <= _OPEN_PLACES:
        return tag("ul", *items)
    summary_text = f"{len(items)} results: {_named(dict.fromkeys(map(place, finding.places)))}"
    return tag("details", tag("summary", summary_text), tag("ul", *items))


def _reason(finding: Finding) -> str:
    first = finding.reasons[0] or "no reason was given"
    return f"{first} (this is the first; each has its own figures)" if len(finding.reasons) > 1 else first


def _link(verdict: Verdict, numbers: dict[str, int]) -> Markup:
    device = f" device {verdict.device}" if verdict.device else ""
    return tag("a", place(verdict) + device, href=f"#node-{numbers[place(verdict)]}")


def _compared(verdict: Verdict, *, own: bool) -> list[str]:
    """Return what was found and expected, and where the expectation and the device come from; with its `own` reason where asked."""
    limit = verdict.expected.removeprefix(f"{subject(verdict)}: ") if subject(verdict) else verdict.expected
    found = with_unit(verdict.found, verdict.unit)
    parts = [found, f"expected {limit}" if limit and limit != subject(verdict) else ""]
    source, serial = f"source: {verdict.source}" if verdict.source else "", f"serial {verdict.serial}" if verdict.serial else ""
    small = [subject(verdict), verdict.reason if own else "", source, serial]
    text = "; ".join(part for part in parts if part)
    return [f": {text}" if text else "", tag("small", " · ".join(part for part in small if part))]


def _decisions(run: BenchRun) -> Markup:
    """Return what the gate does; hosts that it leaves alone are folded, because on a good day that is all of them."""
    ordered = sorted(run.decisions, key=lambda each: natural(each.host))
    done = [each for each in ordered if each.action != LEAVE]
    left = [each for each in ordered if each.action == LEAVE]
    parts = [_decision_table(done)] if done else []
    parts += [tag("details", tag("summary", f"hosts left as they are: {len(left)}"), _decision_table(left))] if left else []
    return join(parts)


def _decision_table(decisions: Sequence[Decision]) -> Markup:
    rows = [tag("tr", tag("th", each.host, scope="row"), tag("td", each.action), tag("td", each.reason)) for each in decisions]
    return _table(("host", "decision", "why"), rows)


def _distributions(values: Sequence[Value]) -> Markup:
    groups: dict[tuple[str, str, str, str, str], list[Value]] = defaultdict(list)
    for value in values:
        groups[value.benchmark, value.series, value.model, value.unit, value.stack].append(value)
    return tag("div", *(_figure(each) for _, each in sorted(groups.items())), class_="figures") if groups else Markup()


def _figure(values: Sequence[Value]) -> Markup:
    first = values[0]
    title = f"{first.benchmark}: {first.series}"
    better = {"higher": "higher is better", "lower": "lower is better", "": ""}[first.better]
    about = " · ".join(part for part in (first.model, f"{first.unit}, {better}".strip(", "), first.stack) if part)
    text = _in_words(values)
    return tag(
        "figure", tag("h3", title), tag("small", about), distribution(values, f"{title}. {text}"), tag("figcaption", text, _outside(values))
    )


def _in_words(values: Sequence[Value]) -> str:
    """Say what the drawing shows."""
    levels, first = [value.value for value in values], values[0]
    hosts = len({value.host for value in values})
    shown = f"lowest {number(min(levels))}, median {number(median(levels))}, highest {number(max(levels))} {first.unit}"
    floor = "no floor" if first.floor is None else f"floor {number(first.floor)}"
    return f"{len(values)} values of {hosts} hosts: {shown}; {floor}."


def _outside(values: Iterable[Value]) -> str:
    out = [value for word in ("fail", "unknown") for value in values if value.verdict == word]
    named = [f"{value.host}{f' device {value.device}' if value.device else ''} {number(value.value)} ({value.verdict})" for value in out]
    return f" Not passing: {_named(named)}." if named else ""


def _named(names: Iterable[str]) -> str:
    """Return the first of many names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:_NAMED]) + (f" and {len(every) - _NAMED} more" if len(every) > _NAMED else "")


def _causes(run: BenchRun, word: Outcome) -> Markup:
    """Return why verdicts are skipped, or what passes lack: one that lacks nothing has no reason."""
    found = [finding for finding in findings(run, (word,)) if finding.reasons[0] or word != "pass"]
    rows = [
        tag(
            "tr",
            tag("th", finding.check, scope="row"),
            tag("td", _reason(finding)),
            tag("td", _hosts_text(finding)),
        )
        for finding in found
    ]
    return _table(("check", "why", "hosts"), rows) if rows else Markup()


def _hosts_text(finding: Finding) -> Markup:
    names = list(dict.fromkeys(place(verdict) for verdict in finding.places))
    text = ", ".join(names)
    return tag("details", tag("summary", f"{len(names)} hosts"), text) if len(names) > _OPEN_PLACES else join([text])


def _table(columns: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", column, scope="col") for column in columns)))
    return tag("div", tag("table", head, tag("tbody", *rows)), class_="wide")
