"""Follows a job until it has ended: prints its events, and why it waits."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from primus_bootstrap.cli.console import clock_text, emit, say
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.workload_view import event_line, print_job
from primus_bootstrap.core.errors import RunError, UnknownError
from primus_bootstrap.launch.watch.job_state import DONE, PENDING, STARTING, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_bootstrap.fleet.jobs import JobStatus
    from primus_bootstrap.inventory.cluster import Cluster

INTERRUPTED = 130
_FOLLOW_S = 3.0
_SILENCE_S = 300.0  # a service host may be rebooting


class JobClient(Protocol):
    """Reads the status of jobs from a service host."""

    cluster: Cluster
    answering: str  # the host that answered last

    def show(self, job: str, *, events_from: int | None = None) -> JobStatus:
        """Return the status of a job, with its events from a byte offset on."""


def follow_job(client: JobClient, job: str, *, as_json: bool, sleep: Callable[[float], None] = time.sleep) -> int:
    """Print a job's events, and why it waits, until it has ended; return 0 if it is done.

    An interrupt (Ctrl-C) ends only this command.

    Raises:
        UnknownError: No service host has answered for _SILENCE_S; the state of the job is unknown.
    """
    try:
        status = _print_until_end(client, job, as_json=as_json, sleep=sleep)
    except KeyboardInterrupt:
        look, cancel = (f"primus-bootstrap workload {verb} hosts.yaml {job}" for verb in ("status", "cancel"))
        say(with_inventory(f"\n{job} continues; look at it: {look}; stop it: {cancel}", client.cluster.path))
        return INTERRUPTED
    if as_json:
        emit(json.dumps(asdict(status)))
    else:
        print_job(status, client.cluster.path)
    return 0 if status.phase == DONE else RunError.exit_code


def _print_until_end(client: JobClient, job: str, *, as_json: bool, sleep: Callable[[float], None]) -> JobStatus:
    offset, shown = 0, ""
    while True:
        status = _wait_for_status(client, job, events_from=offset, sleep=sleep)
        for event in status.events:
            emit(json.dumps(event) if as_json else event_line(event))
        if status.events_end != offset:  # there may be more events than one answer contains, among them the last ones
            offset = status.events_end
            continue
        if status.ended:
            return status
        waits = f"{status.phase}: {status.reason}" if status.phase in (PENDING, STARTING, WAITING) and status.reason else ""
        if waits not in (shown, "") and not as_json:
            emit(f"{clock_text(status.updated)}  {waits}")
        shown = waits
        sleep(_FOLLOW_S)


def _wait_for_status(client: JobClient, job: str, *, events_from: int, sleep: Callable[[float], None]) -> JobStatus:
    """Return the status of a job. Retry for _SILENCE_S while no service host answers, and report that once."""
    began, silent = time.monotonic(), False
    while True:
        try:
            found = client.show(job, events_from=events_from)
        except RunError as error:
            if time.monotonic() - began > _SILENCE_S:
                what = f"the state of {job} is unknown: no answer for {_SILENCE_S / 60:.0f} minutes: {error.what}"
                raise UnknownError(what, fix=f"{error.fix}; then: primus-bootstrap workload status hosts.yaml {job} --follow") from error
            if not silent:
                say(f"{error.what}; retrying for {_SILENCE_S / 60:.0f} minutes, the job continues meanwhile")
            silent = True
            sleep(_FOLLOW_S)
        else:
            if silent:
                say(f"{client.answering} answers again")
            return found
