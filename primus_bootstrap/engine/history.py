"""Earlier runs of a cluster: listing, reading, and what they say about the next one."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.journal import RunFolder, read_journal
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.engine.report import PhaseReport, report_from_events, report_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.engine.report import Report, Result

KEPT_RUNS = 50
# What ansible-runner writes of a run and nobody may keep: its events, and its command with the whole environment.
LEFT_BY_RUNNER = ("job_events", "command")
_ESTIMATE_RUNS = 5
_HEAD_CHARS = 1000  # of a report, whose verb stands near its beginning
# What a file that was torn, or that is no report at all, raises when it is read.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What the runs say about one host: the last run that reached it, how that ended, and the last run that changed it.

    `phases` are those of that last run: after `--phase gpu`, an `ok` says nothing about the others.
    """

    host: str
    last_run: str = ""
    last_result: Result | None = None
    phases: tuple[str, ...] = ()
    last_changed: str = ""


def runs_dir(state_dir: Path) -> Path:
    """Return the folder that holds one folder a run."""
    return state_dir / "runs"


def list_runs(state_dir: Path) -> tuple[RunFolder, ...]:
    """Return the runs, newest first."""
    root = runs_dir(state_dir)
    folders = sorted((path for path in root.iterdir() if path.is_dir()), reverse=True) if root.is_dir() else []
    return tuple(RunFolder(path) for path in folders if RunFolder(path).journal.exists())


def find_run(state_dir: Path, run: str) -> RunFolder:
    """Return a run by its id or by a beginning of it that only one has.

    Raises:
        PlanError: no run, or more than one, begins so.
    """
    found = [folder for folder in list_runs(state_dir) if folder.run.startswith(run)]
    exact = [folder for folder in found if folder.run == run]
    if len(exact or found) != 1:
        what = f"no run begins with {run}" if not found else f"{len(found)} runs begin with {run}"
        raise PlanError(what, fix="`primus-bootstrap runs` lists them")
    return (exact or found)[0]


def read_report(folder: RunFolder) -> Report | None:
    """Return the report of a run, built from its journal where it was killed or report.json is torn; None where it left nothing."""
    if folder.report.is_file():
        with contextlib.suppress(*_UNREADABLE):
            return report_from_json(json.loads(folder.report.read_text(encoding="utf-8")))
    return report_from_events(read_journal(folder.journal))


def last_report(state_dir: Path, *, verb: str = "") -> Report | None:
    """Return the report of the newest run, of that verb where one is given."""
    return next((report for report in _reports(state_dir) if not verb or report.verb == verb), None)


def host_statuses(state_dir: Path) -> dict[str, HostStatus]:
    """Return what the runs that may change hosts say about each host that they had."""
    found: dict[str, HostStatus] = {}
    for report in _reports(state_dir):
        if report.verb == "diff":
            continue
        phases = tuple(phase.phase for phase in report.phases if phase.state != "not_reached")
        for host in report.hosts:
            if host.result == "not_reached":
                continue
            known = found.get(host.host) or HostStatus(host.host, report.run, host.result, phases)
            if host.changed and not known.last_changed:
                known = replace(known, last_changed=report.run)
            found[host.host] = known
    return found


def estimate_s(state_dir: Path, phase: str, hosts: int, *, verb: str = "apply") -> float | None:
    """Return how many seconds a phase took of late: the median over runs with as many hosts, else over all; None if new."""
    same: list[float] = []
    other: list[float] = []
    for folder in list_runs(state_dir):
        for done in _phases_of(folder.report, verb) if folder.report.is_file() else ():
            if done.phase == phase and done.state == "done":
                (same if done.hosts == hosts else other).append(done.seconds)
        if len(same) == _ESTIMATE_RUNS:
            break
    newest = (same or other)[:_ESTIMATE_RUNS]
    return median(newest) if newest else None


@lru_cache(maxsize=KEPT_RUNS)
def _phases_of(report: Path, verb: str) -> tuple[PhaseReport, ...]:
    """Return the phases of a run of that verb; a written report never changes, so it is read once for all phases.

    A run whose report cannot be read has none.
    """
    try:
        with report.open(encoding="utf-8") as file:
            if f'"verb": {json.dumps(verb, ensure_ascii=False)}' not in file.read(_HEAD_CHARS):
                return ()  # of another verb: a report of a large fleet takes long to read
        data = json.loads(report.read_text(encoding="utf-8"))
        phases = [PhaseReport(**phase) for phase in data["phases"]]
        return tuple(replace(phase, seconds=float(phase.seconds)) for phase in phases) if data["verb"] == verb else ()
    except _UNREADABLE:
        return ()


def tidy_runs(state_dir: Path) -> None:
    """Keep the newest `KEPT_RUNS` runs; remove what a kill left of a run's secrets, inventory and environment.

    A run that was killed before its first line is removed as a whole.

    Only whoever holds the cluster's lock may call it.
    """
    for note in runs_dir(state_dir).glob("*/private"):
        private = Path(note.read_text(encoding="utf-8"))
        if private.name.startswith("primus-"):
            shutil.rmtree(private, ignore_errors=True)
        note.unlink()
    for name in LEFT_BY_RUNNER:
        for path in runs_dir(state_dir).glob(f"*/artifacts/*/{name}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in runs_dir(state_dir).glob("*/inventory"):
        shutil.rmtree(path, ignore_errors=True)
    kept = {folder.path for folder in list_runs(state_dir)[:KEPT_RUNS]}
    root = runs_dir(state_dir)
    for path in root.iterdir() if root.is_dir() else ():
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def running(state_dir: Path) -> str:
    """Return the id of the run that holds the lock now, or an empty string."""
    holder = read_holder(state_dir)
    return holder.run if holder else ""


def _reports(state_dir: Path) -> Iterator[Report]:
    now = running(state_dir)
    for folder in list_runs(state_dir):
        if folder.run != now and (report := read_report(folder)):
            yield report
