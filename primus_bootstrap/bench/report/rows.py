"""A bench as rows: one a host, one a verdict, and what needs a look, each cause once. The tables and the page are drawn from them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from primus_bootstrap.bench.report.bench_report import LEAVE
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun

# The worst first: the order in which hosts and findings are shown.
WORST_FIRST: tuple[Outcome, ...] = ("fail", "unknown", "pass", "skipped")
# What a verdict without a host is about.
CLUSTER = "(cluster)"
# Reasons that differ in figures only ("3.1 % below the floor") are one cause.
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


class HostRow(NamedTuple):
    """One host: what the bench says of it, its verdicts by word, the checks that are worst, and what the gate does.

    `host` may also be a path ("a,b": verdicts about two hosts together), or `CLUSTER`. `counts` are (pass, fail, unknown, skipped).
    """

    host: str
    verdict: Outcome
    counts: tuple[int, int, int, int]
    worst: tuple[str, ...]
    decision: str


class Finding(NamedTuple):
    """One cause with every place that has it. `reasons` are those of the places, which differ in their figures only."""

    verdict: Outcome
    check: str
    reasons: tuple[str, ...]
    fix: str
    places: tuple[Verdict, ...]


class VerdictRow(NamedTuple):
    """One verdict as text, for a table."""

    host: str
    device: str
    check: str
    subject: str
    verdict: Outcome
    found: str
    expected: str
    reason: str
    fix: str


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of verdicts; nothing at all is `unknown`."""
    found = set(outcomes)
    return next((word for word in WORST_FIRST if word in found), "unknown")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts node2 before node10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def place(verdict: Verdict) -> str:
    """Return which host, or path between hosts, a verdict is about."""
    return verdict.host or CLUSTER


def subject(verdict: Verdict) -> str:
    """Return what of its check a verdict is about: a benchmark's expectation starts with its series ("gb_per_s m=8192: at least 4")."""
    if not verdict.check.startswith("bench_"):
        return ""
    return verdict.expected.partition(": ")[0]


def with_unit(text: str, unit: str) -> str:
    """Return a found or expected text with its unit, where it is not empty."""
    return f"{text} {unit}".strip() if text else ""


def moment(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601 in UTC; what no calendar holds is its beginning."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00"


def all_verdicts(run: BenchRun) -> tuple[Verdict, ...]:
    """Return the verdicts, and one `unknown` for each host that was benched and has none: it must not look as if nothing was wrong."""
    known = {verdict.host for verdict in run.verdicts}
    reason, fix = "no verdict: nothing is known of this host", "see whether it is reachable, then bench it again"
    lost = [Verdict("bench", host, "unknown", reason=reason, fix=fix) for host, _ in run.hosts if host not in known]
    return (*run.verdicts, *lost)


def by_place(run: BenchRun) -> dict[str, list[Verdict]]:
    """Return all verdicts by host or path."""
    found: dict[str, list[Verdict]] = {}
    for verdict in all_verdicts(run):
        found.setdefault(place(verdict), []).append(verdict)
    return found


def host_rows(run: BenchRun) -> tuple[HostRow, ...]:
    """Return one row a host, the worst first, of these the one with most failures; paths between hosts come last."""
    heard = {verdict.host for verdict in run.verdicts}
    said = {host: outcome for host, outcome in run.hosts if host in heard}
    decided: Mapping[str, str] = {decision.host: decision.action for decision in run.decisions if decision.action != LEAVE}
    rows = [_host_row(host, verdicts, said.get(host), decided.get(host, "")) for host, verdicts in by_place(run).items()]
    return tuple(sorted(rows, key=_badness))


def _badness(row: HostRow) -> tuple[Any, ...]:
    return "," in row.host, WORST_FIRST.index(row.verdict), -row.counts[OUTCOMES.index("fail")], natural(row.host)


def _host_row(host: str, verdicts: Sequence[Verdict], said: Outcome | None, decision: str) -> HostRow:
    counts = Counter(verdict.verdict for verdict in verdicts)
    # What the bench said of the host, which knows of which checks the policy only warns.
    outcome = said or worst_of(counts)
    worst = dict.fromkeys(verdict.check for word in ("fail", "unknown") for verdict in verdicts if verdict.verdict == word)
    passed, failed, unknown, skipped = (counts[word] for word in OUTCOMES)
    return HostRow(host, outcome, (passed, failed, unknown, skipped), tuple(worst), decision)


def findings(run: BenchRun, words: Sequence[Outcome] = ("fail", "unknown")) -> tuple[Finding, ...]:
    """Return the verdicts of these words, each cause once with every place that has it; the words' order is the order."""
    found: dict[tuple[Outcome, str, str, str], list[Verdict]] = defaultdict(list)
    for verdict in all_verdicts(run):
        if verdict.verdict in words:
            found[verdict.verdict, verdict.check, _FIGURE.sub("0", verdict.reason), verdict.fix].append(verdict)
    rows = [
        Finding(outcome, check, tuple(dict.fromkeys(each.reason for each in places)), fix, tuple(sorted(places, key=_where)))
        for (outcome, check, _, fix), places in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (words.index(row.verdict), -len(row.places), _where(row.places[0]), row.check, row.reasons)))


def verdict_rows(run: BenchRun) -> tuple[VerdictRow, ...]:
    """Return one row a verdict, by host, the worst first."""
    ordered = sorted(all_verdicts(run), key=lambda verdict: (*_where(verdict), WORST_FIRST.index(verdict.verdict), verdict.check))
    return tuple(
        VerdictRow(
            host=place(verdict),
            device=verdict.device,
            check=verdict.check,
            subject=subject(verdict),
            verdict=verdict.verdict,
            found=with_unit(verdict.found, verdict.unit),
            expected=verdict.expected,
            reason=verdict.reason,
            fix=verdict.fix,
        )
        for verdict in ordered
    )


def totals(run: BenchRun) -> tuple[Counter[Outcome], Counter[Outcome]]:
    """Return how many hosts, and how many verdicts, there are of each word."""
    return Counter(row.verdict for row in host_rows(run) if "," not in row.host), Counter(verdict.verdict for verdict in all_verdicts(run))


def summary(run: BenchRun) -> str:
    """Say in one line how the bench ended."""
    hosts, verdicts = totals(run)
    shown = [f"{hosts[word]} {word}" for word in WORST_FIRST if hosts[word]]
    short = sum(verdict.verdict == "pass" and bool(verdict.reason) for verdict in run.verdicts)
    less = f" ({short} passes rest on less than usual, with the reason)" if short else ""
    breaker = "; breaker open: nothing is quarantined" if run.breaker else ""
    return f"bench {run.cluster}, tier {run.tier}: {', '.join(shown) or 'no host'}; {verdicts.total()} verdicts{less}{breaker}"


def _where(verdict: Verdict) -> tuple[tuple[tuple[int, int, str], ...], tuple[tuple[int, int, str], ...]]:
    return natural(verdict.host), natural(verdict.device)
