"""How jobs are shown: a table of all, one in full, its events line by line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from primus_bootstrap.cli.console import clock_text, coloured, duration_text, emit, emit_table, plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.fleet.jobs import Job

_SHOWN_HOSTS = 4
_SHOWN_ATTEMPTS = 10


def print_jobs(found: Sequence[Job]) -> None:
    """Print a line a job."""
    if not found:
        emit("no job is under way; --all shows those that have come to their end")
        return
    table = plain_table("job", "user", "target", "state", "for", "attempt", "step", "checkpoint", "hosts", "why")
    for job in found:
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


def print_job(job: Job) -> None:
    """Print one job: how it stands, its attempts, its last events."""
    emit(f"{job.id}: {_state(job)}{f', {job.reason}' if job.reason else ''}")
    if job.fix:
        emit(f"  fix: {job.fix}")
    facts = {
        "user": job.user,
        "target": job.target,
        "attempt": f"{job.attempt}, after {job.restarts} restarts",
        "step": _number(job.step),
        "checkpoint": _number(job.checkpoint),
        "hosts": ", ".join(job.hosts),
        "excluded": ", ".join(job.excluded),
        "written": clock_text(job.updated),
    }
    for name, value in facts.items():
        if value:
            emit(f"  {name:<10}  {value}")
    if job.attempts:
        emit("")
        emit_table(_attempts(job.attempts[-_SHOWN_ATTEMPTS:]))
    if job.events:
        emit("")
        for event in job.events:
            emit(event_line(event))


def event_line(event: Mapping[str, Any]) -> str:
    """Return one event: when, what, where, why."""
    host = f" {event['host']}" if event.get("host") else ""
    step = f", step {event['step']}" if event.get("step") is not None else ""
    reason = f": {event['reason']}" if event.get("reason") else ""
    return f"{clock_text(event['time'])}  attempt {event.get('attempt', 0)}{step}  {event['kind']}{host}{reason}"


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> Any:
    table = plain_table("attempt", "hosts", "started", "took", "to the first step", "steps", "exit", "cause")
    for one in attempts:
        started, ended, first = one.get("started") or 0.0, one.get("ended") or 0.0, one.get("first_step_at") or 0.0
        steps = f"{one['first_step']} to {one['last_step']}" if one.get("first_step") is not None else "none"
        took = duration_text(ended - started) if started and ended else ""
        to_first = f"{first - started:.1f} s" if first and started else ""
        cause = ": ".join(str(one[key]) for key in ("cause", "reason") if one.get(key))
        code = _number(one.get("exit_code"))
        table.add_row(str(one["attempt"]), _hosts(one.get("hosts") or ()), clock_text(started), took, to_first, steps, code, cause)
    return table


def _state(job: Job) -> str:
    """Return the phase; where no watcher lives, it is only what was known last."""
    return f"unknown (was {job.phase}: its watcher is silent)" if job.stale and not job.ended else job.phase


def _hosts(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_HOSTS]) + (f", … ({len(names)})" if len(names) > _SHOWN_HOSTS else "")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
