"""Lists and reads the earlier runs of a cluster, and deletes old runs."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.engine.journal import read_journal
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.engine.report import report_from_events, report_from_json
from primus_bootstrap.engine.state_folder import RUNNER_LEFTOVERS, RunFolder, jobs_dir, runs_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.engine.report import Report

KEPT_RUNS = 50
# Raised when a damaged report is read.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def list_runs(state_dir: Path) -> tuple[RunFolder, ...]:
    """Return the runs, newest first, with those that submitted jobs."""
    folders = [folder for root in (state_dir, jobs_dir(state_dir)) for folder in _run_folders(root)]
    return tuple(sorted(folders, key=_run_of, reverse=True))


def _run_folders(state_dir: Path) -> list[RunFolder]:
    """Return the runs in one state folder, newest first."""
    root = runs_dir(state_dir)
    folders = [RunFolder(path) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    return sorted((folder for folder in folders if folder.journal.exists()), key=_run_of, reverse=True)


def _run_of(folder: RunFolder) -> str:
    return folder.run


def run_folder(state_dir: Path, run: str) -> RunFolder:
    """Return the folder of a run of the cluster, or of a run that submitted a job."""
    submission = RunFolder(runs_dir(jobs_dir(state_dir)) / run)
    return submission if submission.path.is_dir() else RunFolder(runs_dir(state_dir) / run)


def find_run(state_dir: Path, run: str) -> RunFolder:
    """Return the run with this id, or the only run whose id starts with it.

    Raises:
        UsageError: No run, or more than one, starts with it.
    """
    matches = [folder for folder in list_runs(state_dir) if folder.run.startswith(run)]
    exact = [folder for folder in matches if folder.run == run]
    if len(exact or matches) != 1:
        what = f"no run starts with {run}" if not matches else f"{len(matches)} runs start with {run}"
        raise UsageError(what, fix="list the runs: primus-bootstrap runs hosts.yaml")
    return (exact or matches)[0]


def read_report(folder: RunFolder) -> Report | None:
    """Return the report of a run, from its journal if report.json is missing or damaged; None if both are."""
    if folder.report.is_file():
        with contextlib.suppress(*UNREADABLE):
            return report_from_json(json.loads(folder.report.read_text(encoding="utf-8")))
    return report_from_events(read_journal(folder.journal))


def last_report(state_dir: Path, *, verb: str = "") -> Report | None:
    """Return the report of the newest run, or of the newest run of one verb."""
    return next((report for _, report in reports(state_dir) if not verb or report.verb == verb), None)


def running_report(state_dir: Path) -> Report | None:
    """Return the report so far of the run that holds the lock now; None without one, or before it has started.

    Its `finished` is 0, as that of a killed run, but `killed` is false.
    """
    folder = RunFolder(runs_dir(state_dir) / (running(state_dir) or "none"))
    report = report_from_events(read_journal(folder.journal)) if folder.journal.is_file() else None
    return replace(report, killed=False, problem="") if report else None


def planned_hosts(folder: RunFolder) -> dict[str, frozenset[str]]:
    """Return the hosts of each phase in the plan of a run; empty if the plan is missing or damaged."""
    try:
        steps = json.loads(folder.plan.read_text(encoding="utf-8"))["steps"]
        return {str(step["phase"]): frozenset(map(str, step["hosts"])) for step in steps}
    except UNREADABLE:
        return {}


def delete_old_runs(state_dir: Path) -> None:
    """Delete all runs but the newest `KEPT_RUNS`, and the secrets and inventories that killed runs left.

    A run without a journal is deleted. The caller must hold the cluster's lock.
    """
    for note in runs_dir(state_dir).glob("*/private"):
        private = Path(note.read_text(encoding="utf-8"))
        if private.name.startswith("primus-"):
            shutil.rmtree(private, ignore_errors=True)
        note.unlink()
    for name in RUNNER_LEFTOVERS:
        for path in runs_dir(state_dir).glob(f"*/artifacts/*/{name}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in runs_dir(state_dir).glob("*/inventory"):
        shutil.rmtree(path, ignore_errors=True)
    newest = {folder.path for folder in _run_folders(state_dir)[:KEPT_RUNS]}
    root = runs_dir(state_dir)
    for path in root.iterdir() if root.is_dir() else ():
        if path not in newest:
            shutil.rmtree(path, ignore_errors=True)


def running(state_dir: Path) -> str:
    """Return the id of the run that holds the cluster's lock now, or an empty string."""
    holder = read_holder(state_dir)
    return holder.run if holder else ""


def running_runs(state_dir: Path) -> frozenset[str]:
    """Return the ids of the runs that have not ended: that of the cluster, and the submission of a job."""
    return frozenset(run for run in (running(state_dir), running(jobs_dir(state_dir))) if run)


def reports(state_dir: Path) -> Iterator[tuple[RunFolder, Report]]:
    """Yield the reports of the runs that have ended, newest first."""
    now = running_runs(state_dir)
    for folder in list_runs(state_dir):
        if folder.run not in now and (report := read_report(folder)):
            yield folder, report
