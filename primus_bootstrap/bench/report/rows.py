"""Turn a bench into table rows: one for each host, one for each verdict, and one for each finding."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from primus_bootstrap.bench.judging.verdicts import WORST_FIRST, worst_of
from primus_bootstrap.bench.quarantine.decisions import LEAVE
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun

# Shown for a verdict that is not about a host.
CLUSTER = "(cluster)"
# Reasons that differ only in their figures ("3.1 % below the floor") are one finding.
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


class HostRow(NamedTuple):
    """One host."""

    host: str  # name of the host; "a,b" for a path between two hosts; `CLUSTER` for verdicts without a host
    verdict: Outcome  # the verdict on the host
    counts: tuple[int, int, int, int]  # number of verdicts: pass, fail, unknown, skipped
    worst: tuple[str, ...]  # the failed checks, then the unknown ones
    decision: str  # action of the gate; empty if it changes nothing


class Finding(NamedTuple):
    """One cause, with the verdicts that have it. `reasons` differ only in their figures."""

    verdict: Outcome
    check: str
    reasons: tuple[str, ...]
    fix: str
    places: tuple[Verdict, ...]


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts node2 before node10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def place(verdict: Verdict) -> str:
    """Return the host, or the path between hosts, that a verdict is about."""
    return verdict.host or CLUSTER


def subject(verdict: Verdict) -> str:
    """Return the series of a benchmark's verdict: its expectation starts with it ("gb_per_s m=8192: at least 4")."""
    if not verdict.check.startswith("bench_"):
        return ""
    return verdict.expected.partition(": ")[0]


def with_unit(text: str, unit: str) -> str:
    """Return a value with its unit; empty for an empty value."""
    return f"{text} {unit}".strip() if text else ""


def format_time(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601 in UTC; a time outside the calendar becomes the epoch."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00"


def all_verdicts(run: BenchRun) -> tuple[Verdict, ...]:
    """Return the verdicts, and an `unknown` for each benched host without one, so that a lost host is visible."""
    with_verdict = {verdict.host for verdict in run.verdicts}
    reason, fix = "the host gave no verdict", "check that the host is reachable, then bench it again"
    lost = [Verdict("bench", host, "unknown", reason=reason, fix=fix) for host, _ in run.hosts if host not in with_verdict]
    return (*run.verdicts, *lost)


def by_place(run: BenchRun) -> dict[str, list[Verdict]]:
    """Return all verdicts by host or path."""
    found: dict[str, list[Verdict]] = {}
    for verdict in all_verdicts(run):
        found.setdefault(place(verdict), []).append(verdict)
    return found


def host_rows(run: BenchRun) -> tuple[HostRow, ...]:
    """Return one row for each host: the worst first, then by number of failures; paths between hosts last."""
    with_verdict = {verdict.host for verdict in run.verdicts}
    outcomes = {host: outcome for host, outcome in run.hosts if host in with_verdict}
    actions: Mapping[str, str] = {decision.host: decision.action for decision in run.decisions if decision.action != LEAVE}
    rows = [_host_row(host, verdicts, outcomes.get(host), actions.get(host, "")) for host, verdicts in by_place(run).items()]
    return tuple(sorted(rows, key=_row_order))


def _row_order(row: HostRow) -> tuple[Any, ...]:
    return "," in row.host, WORST_FIRST.index(row.verdict), -row.counts[OUTCOMES.index("fail")], natural(row.host)


def _host_row(host: str, verdicts: Sequence[Verdict], outcome: Outcome | None, decision: str) -> HostRow:
    counts = Counter(verdict.verdict for verdict in verdicts)
    worst = dict.fromkeys(verdict.check for word in ("fail", "unknown") for verdict in verdicts if verdict.verdict == word)
    passed, failed, unknown, skipped = (counts[word] for word in OUTCOMES)
    return HostRow(host, outcome or worst_of(counts), (passed, failed, unknown, skipped), tuple(worst), decision)


def findings(run: BenchRun, words: Sequence[Outcome] = ("fail", "unknown")) -> tuple[Finding, ...]:
    """Return the verdicts with these outcomes, grouped by cause; outcomes in the given order, the most frequent cause first."""
    groups: dict[tuple[Outcome, str, str, str], list[Verdict]] = defaultdict(list)
    for verdict in all_verdicts(run):
        if verdict.verdict in words:
            groups[verdict.verdict, verdict.check, _FIGURE.sub("0", verdict.reason), verdict.fix].append(verdict)
    rows = [
        Finding(outcome, check, tuple(dict.fromkeys(verdict.reason for verdict in places)), fix, tuple(sorted(places, key=_where)))
        for (outcome, check, _, fix), places in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (words.index(row.verdict), -len(row.places), _where(row.places[0]), row.check, row.reasons)))


def totals(run: BenchRun) -> tuple[Counter[Outcome], Counter[Outcome]]:
    """Return the number of hosts and the number of verdicts by outcome."""
    return Counter(row.verdict for row in host_rows(run) if "," not in row.host), Counter(verdict.verdict for verdict in all_verdicts(run))


def summary(run: BenchRun) -> str:
    """Return the result of the bench in one line."""
    hosts, verdicts = totals(run)
    shown = [f"{hosts[word]} {word}" for word in WORST_FIRST if hosts[word]]
    limited = sum(verdict.verdict == "pass" and bool(verdict.reason) for verdict in run.verdicts)
    note = f" ({limited} passes with weaker evidence)" if limited else ""
    breaker = "; breaker open: no host is quarantined" if run.breaker else ""
    return f"bench {run.cluster}, tier {run.tier}: {', '.join(shown) or 'no host'}; {verdicts.total()} verdicts{note}{breaker}"


def _where(verdict: Verdict) -> tuple[tuple[tuple[int, int, str], ...], tuple[tuple[int, int, str], ...]]:
    return natural(verdict.host), natural(verdict.device)
