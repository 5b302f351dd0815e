"""Write a bench as one HTML page, from the Jinja templates in `templates/`.

The page needs no network, script, font or picture. Jinja escapes every text of the bench.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from primus_bootstrap.bench.judging.verdicts import WORST_FIRST
from primus_bootstrap.bench.name_list import first_names
from primus_bootstrap.bench.quarantine.decisions import LEAVE
from primus_bootstrap.bench.report.html_hosts import figures, heat_map, host_parts
from primus_bootstrap.bench.report.rows import (
    all_verdicts,
    findings,
    format_time,
    host_rows,
    natural,
    place,
    subject,
    summary,
    totals,
    with_unit,
)

if TYPE_CHECKING:
    from primus_bootstrap.bench.report.bench_report import BenchRun
    from primus_bootstrap.bench.report.rows import Finding
    from primus_bootstrap.core.verdicts import Outcome, Verdict

_TEMPLATES = Path(__file__).with_name("templates")
# A finding with more places than this shows them folded.
_OPEN_PLACES = 4
# The text of a heat map cell beside its colour. Latin characters only: every font has them.
_SIGNS: dict[Outcome, str] = {"pass": "ok", "fail": "\u00d7", "unknown": "?", "skipped": "\u2013"}
# Characters that HTML cannot contain: https://html.spec.whatwg.org/multipage/parsing.html#preprocessing-the-input-stream
_NOT_HTML = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")


def html_text(run: BenchRun) -> str:
    """Return the whole page."""
    rows = host_rows(run)
    host_counts, verdict_counts = totals(run)
    decisions = sorted(run.decisions, key=lambda decision: natural(decision.host))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            run=run,
            summary=summary(run),
            words=WORST_FIRST,
            signs=_SIGNS,
            open_places=_OPEN_PLACES,
            host_counts=host_counts,
            verdict_counts=verdict_counts,
            anchors={row.host: f"node-{index}" for index, row in enumerate(rows)},
            findings=findings(run),
            changed_hosts=[decision for decision in decisions if decision.action != LEAVE],
            unchanged_hosts=[decision for decision in decisions if decision.action == LEAVE],
            rows=rows,
            checks=sorted({verdict.check for verdict in all_verdicts(run)}),
            cells=heat_map(run),
            figures=figures(run.values),
            hosts=host_parts(run, rows),
            limited_passes=[finding for finding in findings(run, ("pass",)) if finding.reasons[0]],
            skipped=findings(run, ("skipped",)),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters |= {
        "cause": _cause,
        "comparison": _comparison,
        "details": _details,
        "duration": _duration,
        "first_names": first_names,
        "label": _label,
        "place": place,
        "sort_natural": lambda names: sorted(names, key=natural),
        "utc": lambda seconds: f"{format_time(seconds).replace('T', ' ')} UTC",
    }
    return environment


def _printable(value: Any) -> Any:
    """Replace characters that HTML cannot contain; markup and other types are returned as they are."""
    return _NOT_HTML.sub("\ufffd", value) if type(value) is str else value


def _cause(finding: Finding) -> str:
    reason = finding.reasons[0] or "no reason was given"
    return f"{reason} (the first of {len(finding.reasons)}; the others differ in their figures)" if len(finding.reasons) > 1 else reason


def _comparison(verdict: Verdict) -> str:
    """Return the value and the limit, without the series, which `_details` shows."""
    series = subject(verdict)
    limit = verdict.expected.removeprefix(f"{series}: ") if series else verdict.expected
    found = with_unit(verdict.found, verdict.unit)
    return "; ".join(part for part in (found, f"expected {limit}" if limit and limit != series else "") if part)


def _details(verdict: Verdict, *, with_reason: bool) -> str:
    source = f"source: {verdict.source}" if verdict.source else ""
    serial = f"serial {verdict.serial}" if verdict.serial else ""
    return " · ".join(part for part in (subject(verdict), verdict.reason if with_reason else "", source, serial) if part)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _label(verdict: Verdict) -> str:
    """Return the text of a verdict in a host's table: the value, with the word before it unless the verdict is a pass."""
    word = "" if verdict.verdict == "pass" and verdict.found else verdict.verdict
    return " ".join(part for part in (word, verdict.found) if part)
