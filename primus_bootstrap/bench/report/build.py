"""Build the report of a bench from its evaluation, and render the report files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from primus_bootstrap.bench.report.bench_report import BenchRun, DeviceHistory, HistoryPoint, ReportedValue
from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.junit import junit_text
from primus_bootstrap.bench.results.reader import STACK, device_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, EvaluatedValue
    from primus_bootstrap.bench.quarantine.decisions import GateResult
    from primus_bootstrap.bench.results.history import DeviceRecord, History
    from primus_bootstrap.core.verdicts import Outcome


def build_report(  # noqa: PLR0913 - all parts of a report; by name
    *, cluster: str, tier: str, now: float, hosts: Mapping[str, Outcome], evaluation: BenchEvaluation, gate: GateResult, history: History
) -> BenchRun:
    """Return the report of a bench.

    Args:
        now: The controller's clock (seconds since the epoch).
        hosts: The verdict of each host under the policy; a check that the policy only warns about fails no host.
    """
    values = reported_values(evaluation.values)
    started = min((verdict.started for verdict in evaluation.verdicts if verdict.started), default=now)
    return BenchRun(
        cluster=cluster,
        tier=tier,
        started=started,
        seconds=max(0.0, now - started),
        hosts=tuple(hosts.items()),
        verdicts=evaluation.verdicts,
        values=values,
        history=device_histories(values, history.records),
        decisions=gate.decisions,
        breaker=gate.breaker,
        problems=history.problems,
    )


def reported_values(values: Iterable[EvaluatedValue]) -> tuple[ReportedValue, ...]:
    """Return evaluated values in the form of the report: series and versions as text."""
    return tuple(
        ReportedValue(
            benchmark=key.series.benchmark,
            series=key.series.text(),
            unit=key.unit,
            better=key.better,
            model=key.model,
            stack=", ".join(f"{name} {version}" for name, version in zip(STACK, key.stack, strict=True) if version),
            host=sample.host,
            device=sample.device,
            serial=sample.serial,
            value=sample.value,
            error=sample.error,
            repeats=sample.repeats,
            floor=floor,
            verdict=verdict,
        )
        for key, sample, floor, verdict in values
    )


def device_histories(values: Iterable[ReportedValue], records: Mapping[str, Sequence[DeviceRecord]]) -> tuple[DeviceHistory, ...]:
    """Return the earlier values of each value's device in the same series, oldest first.

    Args:
        records: Earlier benches by `device_key`.
    """
    points: dict[tuple[str, str, str, str], list[HistoryPoint]] = {}
    for key, device_records in records.items():
        for record in device_records:
            for past in record.values:
                series = key, past.series.benchmark, past.series.text(), past.unit
                points.setdefault(series, []).append(HistoryPoint(record.time, past.value, record.verdict))
    histories = []
    for value in values:
        earlier = points.get((device_key(value.serial, value.host, value.device), value.benchmark, value.series, value.unit))
        if earlier:
            ordered = tuple(sorted(earlier))
            histories.append(DeviceHistory(value.host, value.device, value.serial, value.benchmark, value.series, value.unit, ordered))
    return tuple(histories)


def report_files(run: BenchRun) -> dict[str, str]:
    """Return the report files by name. bench.json comes last: a folder that contains it is a finished bench."""
    return {"bench.html": html_text(run), "junit.xml": junit_text(run), "bench.json": json.dumps(run.to_json()) + "\n"}
