"""A finished bench on the controller's disk: bench.json, bench.html and junit.xml in a folder of its own, and which one is the last."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from primus_bootstrap.bench.report.bench_report import BenchRun, Breaker, Decision
from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.junit import junit_text
from primus_bootstrap.bench.report.report_input import report_history, report_values
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
    from primus_bootstrap.bench.quarantine.gate import Gate
    from primus_bootstrap.bench.results.history import History
    from primus_bootstrap.bench.results.reader import Result
    from primus_bootstrap.core.verdicts import Outcome

RUNS = "runs"
FIX_BREAKER = "look at what these hosts share; then primus-bootstrap bench --reset-breaker --confirm CLUSTER_NAME, and bench again"


def make_run(  # noqa: PLR0913 - all that a report shows; by name
    *,
    cluster: str,
    tier: str,
    now: float,
    hosts: Mapping[str, Outcome],
    results: Iterable[Result],
    judgement: BenchEvaluation,
    gate: Gate,
    history: History,
) -> BenchRun:
    """Return a bench as its reports show it; it began with its first measurement.

    `hosts` is what the policy makes of each host's verdicts: a check that it only warns of fails no host.
    """
    better = {(each.series.benchmark, each.series.text()): each.better for each in results}
    values = report_values(judgement.values, better)
    started = min((verdict.started for verdict in judgement.verdicts if verdict.started), default=now)
    breaker = gate.breaker
    return BenchRun(
        cluster=cluster,
        tier=tier,
        started=started,
        seconds=max(0.0, now - started),
        hosts=tuple(hosts.items()),
        verdicts=judgement.verdicts,
        values=values,
        history=report_history(values, history.records),
        decisions=tuple(Decision(each.host, each.action, each.reason) for each in gate.decisions),
        breaker=Breaker(breaker.reason, breaker.since, breaker.hosts, FIX_BREAKER) if breaker else None,
        problems=history.problems,
    )


def write_run(folder: Path, run: BenchRun, json_text: str, *, now: float) -> Path:
    """Write the three reports of a bench, and return their folder.

    Raises:
        RunError: they cannot be written.
    """
    own = folder / RUNS / datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    # bench.json last: with it the folder counts as a bench that ended.
    texts = {"bench.html": html_text(run), "junit.xml": junit_text(run), "bench.json": json_text}
    try:
        own.mkdir(parents=True, mode=0o700)
        for name, text in texts.items():
            write_atomic(own / name, text)
    except OSError as error:
        raise RunError(f"cannot write {own}: {error.strerror or error}", fix="free space there and make it writable") from error
    return own


def last_run(folder: Path) -> Path:
    """Return the folder of the latest bench.

    Raises:
        PlanError: there is none yet.
    """
    found = newest_runs(folder)
    if not found:
        raise PlanError(f"no bench has ended yet: {folder / RUNS} is empty", fix="primus-bootstrap bench hosts.yaml")
    return found[0]


def newest_runs(folder: Path) -> tuple[Path, ...]:
    """Return the folders of all benches that ended, newest first."""
    return tuple(sorted((path.parent for path in (folder / RUNS).glob("*/bench.json")), reverse=True))
