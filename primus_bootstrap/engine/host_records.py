"""What earlier runs say about each host: its last full apply, the last change, the last proof, and the drift since then."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from primus_bootstrap.engine.history import UNREADABLE, list_runs, planned_hosts, read_report, running_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Outcome
    from primus_bootstrap.engine.report import HostReport, Report
    from primus_bootstrap.engine.state_folder import RunFolder

# The first words of the verbs that change hosts.
_CHANGING = ("apply", "node add ", "node remove ", "node replace ", "reset", "upgrade ", "restore ", "renew ", "rotate")
_PROOF_PHASE = "verify"


@dataclass(frozen=True, slots=True)
class RunMark:
    """A run, for one host: its id, verb and end.

    `problem` is why it did not succeed there, `unclear` what its checks could not find out; both are empty if all is well.
    """

    run: str
    verb: str
    at: float
    problem: str = ""
    unclear: str = ""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What the runs of this controller say about one host; None where no run says it.

    `applied` is the last full apply that succeeded, or the `node add` of the host; `files` has the checksums of the inventory files
    that it read. `drift` is the number of tasks that the last `diff` after it would change. `changed` is the last run that could
    change the host, `proven` the last run that verified its services.
    """

    host: str
    applied: RunMark | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    drift: int | None = None
    changed: RunMark | None = None
    proven: RunMark | None = None

    def edited(self, files: Mapping[str, str]) -> tuple[str, ...]:
        """Return the inventory files that differ from those of the last full apply; hosts.yaml is the empty string."""
        names = {*self.files, *files} if self.applied else set()
        return tuple(sorted(name for name in names if self.files.get(name) != files.get(name)))


def host_records(state_dir: Path, hosts: Iterable[str]) -> dict[str, HostRecord]:
    """Return the record of each host."""
    records = {host: HostRecord(host) for host in hosts}
    now = running_runs(state_dir)
    for folder in reversed(list_runs(state_dir)):
        report = read_report(folder) if folder.run not in now else None
        if report:
            _add_run(records, folder, report)
    return records


def last_change(state_dir: Path) -> Report | None:
    """Return the report of the newest run that could change hosts."""
    now = running_runs(state_dir)
    found = (read_report(folder) for folder in list_runs(state_dir) if folder.run not in now)
    return next((report for report in found if report and report.verb.startswith(_CHANGING)), None)


def _add_run(records: dict[str, HostRecord], folder: RunFolder, report: Report) -> None:
    """Update the records with a newer run."""
    complete, files = _inputs(folder)
    proven = _proven_hosts(folder, report)
    for host in report.hosts:
        record = records.get(host.host)
        if record is None or host.result == "not_reached":
            continue
        mark = RunMark(report.run, report.verb, report.finished or report.started, _problem(report, host))
        if host.host in proven:
            record = replace(record, proven=replace(mark, problem=mark.problem or _check(host, "fail"), unclear=_check(host, "unknown")))
        if report.verb == "diff" and complete and not mark.problem:
            record = replace(record, drift=host.changed)
        if report.verb.startswith(_CHANGING):
            record = replace(record, changed=mark)
        if report.verb == "reset":
            record = HostRecord(host.host, changed=mark)
        if complete and not mark.problem and _applies(report.verb, host.host):
            record = replace(record, applied=mark, files=files, drift=None)
        records[host.host] = record


def _applies(verb: str, host: str) -> bool:
    """Return whether a complete run of a verb configures all of a host; `node add` and `node replace` do for their new host."""
    return verb == "apply" or (verb.startswith(("node add ", "node replace ")) and verb.rsplit(maxsplit=1)[-1] == host)


def _inputs(folder: RunFolder) -> tuple[bool, dict[str, str]]:
    """Return whether the plan of a run was complete, and the checksums of its inventory files."""
    try:
        data = json.loads(folder.inputs.read_text(encoding="utf-8"))
        return bool(data["complete"]), {str(name): str(value) for name, value in data["files"].items()}
    except UNREADABLE:
        return False, {}


def _proven_hosts(folder: RunFolder, report: Report) -> frozenset[str]:
    """Return the hosts whose services a run verified, or tried to."""
    reached = any(phase.phase == _PROOF_PHASE and phase.state != "not_reached" for phase in report.phases)
    return planned_hosts(folder).get(_PROOF_PHASE, frozenset()) if reached else frozenset()


def _problem(report: Report, host: HostReport) -> str:
    """Return why a run did not succeed on a host, or an empty string."""
    if host.result in ("ok", "changed"):
        return ""
    if not host.failures:
        return report.verb + (" was interrupted" if host.result == "interrupted" else " did not reach the host")
    failure = host.failures[0]
    where = failure.role or failure.phase
    return f"{report.verb} failed in {where}: {(failure.cause.splitlines() or [failure.task])[0]}"


def _check(host: HostReport, outcome: Outcome) -> str:
    """Return the first verdict with this outcome, or an empty string."""
    found = next((verdict for verdict in host.verdicts if verdict.verdict == outcome), None)
    return f"{found.check}: {found.reason or outcome}" if found else ""
