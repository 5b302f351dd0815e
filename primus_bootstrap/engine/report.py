"""The report of a run, computed from its events. A killed run gets the same report from its journal."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from primus_bootstrap.core.verdicts import OUTCOMES, Verdict, parse_verdict
from primus_bootstrap.engine.events import (
    Event,
    HostPinned,
    HostResult,
    PhaseFinished,
    PhaseStarted,
    Preparing,
    Recap,
    RunFinished,
    RunStarted,
    VerdictFound,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = "primus.report/1"

Result = Literal["ok", "changed", "failed", "unreachable", "not_reached", "interrupted"]
EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 4, 130


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed task on one host: where it failed, the cause and the fix."""

    phase: str
    role: str
    task: str
    task_path: str
    cause: str
    fix: str


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host of the plan.

    `ok`, `changed` and `skipped` count tasks. `failures` end the run on the host; after an `ignored` failure the playbook
    continues. `verdicts` are those that did not pass; `verdict_counts` are (pass, fail, unknown, skipped).
    """

    host: str
    result: Result
    ok: int = 0
    changed: int = 0
    skipped: int = 0
    failures: tuple[Failure, ...] = ()
    ignored: tuple[Failure, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    verdict_counts: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """One phase of the plan. `seconds` is its duration, 0 if it was not reached; `hosts` is the number of hosts."""

    phase: str
    seconds: float
    hosts: int
    state: Literal["done", "aborted", "not_reached"]


@dataclass(frozen=True, slots=True)
class Change:
    """A task that changed something, and the number of hosts."""

    phase: str
    role: str
    task: str
    hosts: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. Times are seconds since the epoch (UTC). For a killed run, `finished` is 0 and `killed` is true.

    `preparing_s` are the seconds before the first phase and between Ansible's processes: host keys, the start of Ansible.
    """

    run: str
    verb: str
    cluster: str
    started: float
    finished: float
    exit_code: int
    hosts: tuple[HostReport, ...]
    phases: tuple[PhaseReport, ...]
    changes: tuple[Change, ...] = ()
    pins: tuple[HostPinned, ...] = ()
    problem: str = ""
    killed: bool = False
    preparing_s: float = 0.0

    @property
    def changed(self) -> int:
        """The number of tasks that changed something, summed over all hosts."""
        return sum(host.changed for host in self.hosts)

    def with_result(self, *results: Result) -> tuple[HostReport, ...]:
        """Return the hosts with one of these results."""
        return tuple(host for host in self.hosts if host.result in results)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data for `json.dumps`."""
        return {"schema": SCHEMA, **asdict(self)}


def report_from_json(data: Mapping[str, Any]) -> Report:
    """Read a report from the data of report.json."""
    return Report(
        **{name: data[name] for name in ("run", "verb", "cluster", "started", "finished", "exit_code", "problem", "killed")},
        hosts=tuple(_host_from_json(host) for host in data["hosts"]),
        phases=tuple(PhaseReport(**phase) for phase in data["phases"]),
        changes=tuple(Change(**change) for change in data["changes"]),
        pins=tuple(HostPinned(**pin) for pin in data["pins"]),
        preparing_s=float(data.get("preparing_s", 0.0)),  # reports of earlier versions do not have it
    )


def report_from_events(events: Iterable[Event]) -> Report | None:
    """Build the report of a run from its events; return None without a RunStarted."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.report() if tally.start else None


@dataclass(slots=True)
class _HostTally:
    """The results of one host. `phase_of` has the phase in which a result (check, device, verdict, reason) was first found."""

    reached: bool = False
    sums: list[int] = field(default_factory=lambda: [0, 0, 0])
    running: list[int] = field(default_factory=lambda: [0, 0, 0])
    failures: list[Failure] = field(default_factory=list)
    ignored: list[Failure] = field(default_factory=list)
    unreachable: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    phase_of: dict[tuple[str, str, str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """Sums up events. Its size depends on the number of hosts, checks and failures, not on the number of tasks."""

    start: RunStarted | None = None
    _end: RunFinished | None = None
    _hosts: dict[str, _HostTally] = field(default_factory=dict)
    _phases: dict[str, tuple[float, bool]] = field(default_factory=dict)
    _changes: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _pins: list[HostPinned] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)
    _recapped: bool = False
    _preparing_since: float | None = None
    _preparing_s: float = 0.0

    def add(self, event: Event) -> None:
        """Add one event."""
        match event:
            case RunStarted():
                self.start = event
                self._preparing_since = event.at
                self._hosts = {host: _HostTally() for _, hosts in event.steps for host in hosts}
            case HostResult():
                self._add_result(event)
            case VerdictFound():
                self._add_verdict(event.phase, event.verdict)
            case Preparing():
                self._preparing_since = self._preparing_since or event.at
            case PhaseStarted():
                self._start_phase(event)
            case PhaseFinished():
                self._add_phase(event)
            case Recap():
                self._failed |= {*event.failed, *event.unreachable}
                self._recapped = True
            case HostPinned():
                self._pins.append(event)
            case RunFinished():
                self._end = event
            case _:
                pass

    def report(self) -> Report:
        """Return the report of the run so far."""
        if self.start is None:
            raise ValueError("no RunStarted event")
        hosts = tuple(self._host_report(name, host) for name, host in self._hosts.items())
        end = self._end or RunFinished(at=0.0, exit_code=EXIT_INTERRUPTED, problem="the run was killed before it wrote its report")
        return Report(
            run=self.start.run,
            verb=self.start.verb,
            cluster=self.start.cluster,
            started=self.start.at,
            finished=end.at,
            exit_code=end.exit_code,
            hosts=hosts,
            phases=tuple(self._phase_report(phase, len(members)) for phase, members in self.start.steps),
            changes=tuple(Change(*key, hosts=count) for key, count in self._changes.items()),
            pins=tuple(self._pins),
            problem=end.problem,
            killed=self._end is None,
            preparing_s=round(self._preparing_s, 3),
        )

    def exit_code(self, *, interrupted: bool, problem: str) -> int:
        """Return the exit code of the run."""
        if interrupted:
            return EXIT_INTERRUPTED
        succeeded = all(self._result(name, host) in ("ok", "changed") for name, host in self._hosts.items())
        return EXIT_DONE if succeeded and not problem else EXIT_FAILED

    @property
    def lost_hosts(self) -> frozenset[str]:
        """Hosts that failed or were unreachable, so that later phases exclude them."""
        return frozenset(self._failed)

    def _host(self, name: str) -> _HostTally:
        return self._hosts.setdefault(name, _HostTally())

    def _add_result(self, event: HostResult) -> None:
        host = self._host(event.host)
        host.reached = True
        if event.status in ("failed", "unreachable", "ignored"):
            failures = host.ignored if event.status == "ignored" else host.failures
            failures.append(Failure(event.phase, event.role, event.task, event.task_path, event.message, event.fix))
        if event.status in ("failed", "unreachable"):
            host.unreachable = host.unreachable or event.status == "unreachable"
            return
        host.running[{"ok": 0, "ignored": 0, "changed": 1, "skipped": 2}[event.status]] += 1
        if event.status == "changed":
            key = (event.phase, event.role, event.task)
            self._changes[key] = self._changes.get(key, 0) + 1

    def _add_verdict(self, phase: str, verdict: Verdict) -> None:
        """Count a verdict, but not the same result of the same check in a later phase."""
        host = self._host(verdict.host)
        if host.phase_of.setdefault((verdict.check, verdict.device, verdict.verdict, verdict.reason), phase) != phase:
            return
        host.outcomes[verdict.verdict] += 1
        if verdict.verdict != "pass":
            host.verdicts.append(verdict)

    def _start_phase(self, event: PhaseStarted) -> None:
        self._recapped = False
        if self._preparing_since is not None:
            self._preparing_s += max(event.at - self._preparing_since, 0.0)
        self._preparing_since = None
        for name in event.hosts:
            self._host(name).reached = True

    def _add_phase(self, event: PhaseFinished) -> None:
        seconds, _ = self._phases.get(event.phase, (0.0, False))
        self._phases[event.phase] = (round(seconds + event.seconds, 3), event.aborted)
        for host in self._hosts.values():
            host.running = [0, 0, 0]
        for name, *sums in event.counts:
            host = self._host(name)
            host.reached = True
            host.sums = [old + new for old, new in zip(host.sums, sums, strict=True)]

    def _phase_report(self, phase: str, hosts: int) -> PhaseReport:
        if phase not in self._phases:
            return PhaseReport(phase, 0.0, hosts, "not_reached")
        seconds, aborted = self._phases[phase]
        return PhaseReport(phase, seconds, hosts, "aborted" if aborted else "done")

    def _host_report(self, name: str, host: _HostTally) -> HostReport:
        ok, changed, skipped = (old + new for old, new in zip(host.sums, host.running, strict=True))
        result = self._result(name, host)
        return HostReport(
            host=name,
            result=result,
            ok=ok,
            changed=changed,
            skipped=skipped,
            # Failures that a rescue block handled do not count. Only Ansible's recap identifies them.
            failures=tuple(host.failures) if result in ("failed", "unreachable") else (),
            ignored=tuple(host.ignored),
            verdicts=tuple(host.verdicts),
            verdict_counts=tuple(host.outcomes[word] for word in OUTCOMES),  # type: ignore[arg-type]
        )

    def _result(self, name: str, host: _HostTally) -> Result:
        if host.failures and (name in self._failed or not self._recapped):
            return "unreachable" if host.unreachable else "failed"
        if self._is_incomplete(name):
            stopped = self._end is None or self._end.exit_code == EXIT_INTERRUPTED
            return "interrupted" if stopped and host.reached else "not_reached"
        return "changed" if host.sums[1] + host.running[1] else "ok"

    def _is_incomplete(self, name: str) -> bool:
        """Return whether some phase of a host was aborted or never ran."""
        steps = self.start.steps if self.start else ()
        return any(name in hosts and self._phases.get(phase, (0.0, True))[1] for phase, hosts in steps)


def _host_from_json(data: Mapping[str, Any]) -> HostReport:
    values = dict(data)
    for name in ("failures", "ignored"):
        values[name] = tuple(Failure(**failure) for failure in data.get(name, ()))
    values["verdicts"] = tuple(parse_verdict(verdict) for verdict in data["verdicts"])
    values["verdict_counts"] = tuple(data["verdict_counts"])
    return HostReport(**values)


def report_text(report: Report) -> str:
    """Return the text of report.json."""
    return json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n"
