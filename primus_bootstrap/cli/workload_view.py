"""Print training jobs: a table of all, one job in full, and its events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from primus_bootstrap.cli.console import clock_text, coloured, count, duration_text, emit, emit_table, plain_table
from primus_bootstrap.cli.printed_commands import with_inventory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.fleet.jobs import JobStatus

_SHOWN_HOSTS = 4
_SHOWN_ATTEMPTS = 10


def print_jobs(jobs: Sequence[JobStatus]) -> None:
    """Print a table with one line per job."""
    if not jobs:
        emit("no job is under way; --all also lists jobs that have ended")
        return
    table = plain_table("job", "user", "target", "state", "for", "attempt", "step", "checkpoint", "hosts", "why")
    for job in jobs:
        since = duration_text(max(0.0, time.time() - job.since)) if job.since else ""
        table.add_row(
            job.id,
            job.user,
            job.target,
            coloured(_state(job)),
            since,
            str(job.attempt),
            _number(job.step),
            _number(job.checkpoint),
            _hosts(job.hosts),
            job.reason,
        )
    emit_table(table)


def print_job(job: JobStatus, file: Path) -> None:
    """Print one job: its state, attempts and newest events. `file` is the hosts.yaml, for commands to copy."""
    emit(f"{job.id}: {_state(job)}{f', {job.reason}' if job.reason else ''}")
    if job.fix:
        emit(f"  fix: {with_inventory(job.fix, file)}")
    fields = {
        "user": job.user,
        "target": job.target,
        "attempt": f"{job.attempt}, after {count(job.restarts, 'restart')}",
        "step": _number(job.step),
        "checkpoint": _number(job.checkpoint),
        "hosts": ", ".join(job.hosts),
        "excluded": ", ".join(job.excluded),
        "written": clock_text(job.updated),
    }
    for name, value in fields.items():
        if value:
            emit(f"  {name:<10}  {value}")
    if job.attempts:
        emit("")
        emit_table(_attempts_table(job.attempts[-_SHOWN_ATTEMPTS:]))
    if job.events:
        emit("")
        for event in job.events:
            emit(event_line(event))


def event_line(event: Mapping[str, Any]) -> str:
    """Return one event as a line: time, attempt, step, kind, host and reason."""
    host = f" {event['host']}" if event.get("host") else ""
    step = f", step {event['step']}" if event.get("step") is not None else ""
    reason = f": {event['reason']}" if event.get("reason") else ""
    return f"{clock_text(event['time'])}  attempt {event.get('attempt', 0)}{step}  {event['kind']}{host}{reason}"


def _attempts_table(attempts: Sequence[Mapping[str, Any]]) -> Any:
    table = plain_table("attempt", "hosts", "started", "took", "to the first step", "steps", "exit", "cause")
    for attempt in attempts:
        started, ended, first = attempt.get("started") or 0.0, attempt.get("ended") or 0.0, attempt.get("first_step_at") or 0.0
        took = duration_text(ended - started) if started and ended else ""
        to_first = f"{first - started:.1f} s" if first and started else ""
        cause = ": ".join(str(attempt[key]) for key in ("cause", "reason") if attempt.get(key))
        code = _number(attempt.get("exit_code"))
        number, hosts, steps = str(attempt["attempt"]), _hosts(attempt.get("hosts") or ()), _steps(attempt)
        table.add_row(number, hosts, clock_text(started), took, to_first, steps, code, cause)
    return table


def _steps(attempt: Mapping[str, Any]) -> str:
    """Return the steps of an attempt. The newest one may be known before the first one."""
    first, last = attempt.get("first_step"), attempt.get("last_step")
    if last is None:
        return "none"
    return f"up to {last}" if first is None else f"{first} to {last}"


def _state(job: JobStatus) -> str:
    """Return the phase; without a running watcher it is unknown, and the last phase is given."""
    return f"unknown (was {job.phase}: its watcher is silent)" if job.stale and not job.ended else job.phase


def _hosts(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_HOSTS]) + (f", … ({len(names)})" if len(names) > _SHOWN_HOSTS else "")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
