"""Lists and reads the earlier runs of a cluster, and deletes old runs."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.engine.journal import read_journal
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.engine.report import report_from_events, report_from_json
from primus_bootstrap.engine.state_folder import RUNNER_LEFTOVERS, RunFolder, runs_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.engine.report import Report, Result

KEPT_RUNS = 50
# Raised when a damaged report is read.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """The last run that reached a host, its result and phases, and the last run that changed the host."""

    host: str
    last_run: str = ""
    last_result: Result | None = None
    phases: tuple[str, ...] = ()
    last_changed: str = ""


def list_runs(state_dir: Path) -> tuple[RunFolder, ...]:
    """Return the runs, newest first."""
    root = runs_dir(state_dir)
    folders = sorted((path for path in root.iterdir() if path.is_dir()), reverse=True) if root.is_dir() else []
    return tuple(RunFolder(path) for path in folders if RunFolder(path).journal.exists())


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
    return next((report for report in _reports(state_dir) if not verb or report.verb == verb), None)


def running_report(state_dir: Path) -> Report | None:
    """Return the report so far of the run that holds the lock now; None without one, or before it has started.

    Its `finished` is 0, as that of a killed run, but `killed` is false.
    """
    folder = RunFolder(runs_dir(state_dir) / (running(state_dir) or "none"))
    report = report_from_events(read_journal(folder.journal)) if folder.journal.is_file() else None
    return replace(report, killed=False, problem="") if report else None


def host_statuses(state_dir: Path) -> dict[str, HostStatus]:
    """Return the status of each host according to all runs except `diff`, which changes nothing."""
    statuses: dict[str, HostStatus] = {}
    for report in _reports(state_dir):
        if report.verb == "diff":
            continue
        reached = [phase.phase for phase in report.phases if phase.state != "not_reached"]
        hosts_of = planned_hosts(RunFolder(runs_dir(state_dir) / report.run))
        for host in report.hosts:
            if host.result == "not_reached":
                continue
            phases = tuple(phase for phase in reached if phase not in hosts_of or host.host in hosts_of[phase])
            status = statuses.get(host.host) or HostStatus(host.host, report.run, host.result, phases)
            if host.changed and not status.last_changed:
                status = replace(status, last_changed=report.run)
            statuses[host.host] = status
    return statuses


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
    newest = {folder.path for folder in list_runs(state_dir)[:KEPT_RUNS]}
    root = runs_dir(state_dir)
    for path in root.iterdir() if root.is_dir() else ():
        if path not in newest:
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
