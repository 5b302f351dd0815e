"""The verb `verify`: runs each role's checks of its service, and shows one row per service and host."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_bootstrap import content
from primus_bootstrap.cli.console import coloured, count, duration_text, emit, emit_json, emit_table, plain_table
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Forks,
    HostsFile,
    Limit,
    VaultPasswordFile,
    examples,
)
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.run_verbs import load_for_run, run_options, run_plan
from primus_bootstrap.engine.events import Event, HostResult, Recap, VerdictFound
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.playbooks import groups_in, hosts_of, load_phases
from primus_bootstrap.engine.report import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Outcome, Verdict
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.inventory.cluster import Cluster

SCHEMA = "primus.verify/1"
PHASE = "verify"
# With more hosts than this, the good rows of a service become one line.
_SHOWN_HOSTS = 40
_SHOWN_CHECKS = 6
# The fix for a failure without a fix of its own.
_APPLY = "primus-bootstrap apply hosts.yaml, then verify again"
_NOT_CHECKED = "not checked"
# Variables that make the roles repeat proofs that still hold.
_REPEAT_PROOFS = ("slurm_verify_jobs_max_age_h=0",)
# Ansible's own task, which checks the arguments of a role and no host.
_ARGUMENT_CHECK = "Validating arguments against arg spec"


@dataclass(frozen=True, slots=True)
class Row:
    """One service on one host. `reason` and `fix` are empty on a pass; `seconds` is the duration of its tasks on the host."""

    service: str
    host: str
    verdict: Outcome
    proven: str
    reason: str = ""
    fix: str = ""
    seconds: float = 0.0
    records: tuple[Verdict, ...] = ()


@dataclass(slots=True)
class ServiceResults:
    """The results of one role on one host."""

    records: list[Verdict] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    failures: list[HostResult] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True)
class Results:
    """Collects the events of a run by role and host. A verdict belongs to the role whose task returned it."""

    by_service: dict[tuple[str, str], ServiceResults] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    recapped: bool = False
    _role: str = ""

    def add(self, event: Event) -> None:
        """Add one event."""
        match event:
            case HostResult():
                self._role = event.role or event.phase
                self._add_result(event, self.at(self._role, event.host))
            case VerdictFound():
                # Verdicts follow the result that they came with. They may be about other hosts.
                self.at(self._role, event.verdict.host).records.append(event.verdict)
            case Recap():
                self.lost |= {*event.failed, *event.unreachable}
                self.recapped = True
            case _:
                pass

    def at(self, role: str, host: str) -> ServiceResults:
        """Return the results of a role on a host."""
        return self.by_service.setdefault((role, host), ServiceResults())

    def _add_result(self, event: HostResult, service: ServiceResults) -> None:
        service.seconds += event.seconds
        if event.status in ("failed", "unreachable"):
            service.failures.append(event)
        elif event.status in ("ok", "changed") and not event.task.startswith(_ARGUMENT_CHECK):
            service.tasks.append(event.task)

    def failure(self, role: str, host: str) -> HostResult | None:
        """Return the failure of a role on a host, unless a rescue block handled it."""
        failures = self.by_service[role, host].failures if (role, host) in self.by_service else []
        return failures[-1] if failures and (host in self.lost or not self.recapped) else None


def register(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("verify", epilog=examples("verify", "verify --limit gpu1", "verify --deep"))(verify)


def verify(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    limit: Limit = None,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    deep: Annotated[bool, typer.Option("--deep", help="Repeat the test jobs, also if they passed in the last hours.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify every service on every host, and show the results. Changes nothing.

    Each role verifies its effect (a login, a mount with data, a finished job), not its files. Exit code 4 if a service fails or
    is unknown; a service that was not checked is unknown.
    """
    options = run_options(PHASE, _REPEAT_PROOFS if deep else None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_for_run(hosts, options)
    plan = make_plan(cluster, phases=(PHASE,), limit=limit)
    results = Results()
    report = run_plan(cluster, plan, replace(options, limited=limit is not None), results.add)
    rows = make_rows(expected_services(cluster, plan), results)
    code = exit_code(report.exit_code, rows)
    if as_json:
        emit_json(to_json(report, rows, code))
    else:
        _print(rows, report, cluster.path)
    raise typer.Exit(code)


def expected_services(cluster: Cluster, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return every (role, host) of the plan's playbooks, in the order of the roles."""
    steps = {step.playbook: step for step in plan.steps}
    plays = [
        (play, steps[phase.playbook]) for phase in load_phases(content.playbooks_dir()) if phase.playbook in steps for play in phase.plays
    ]
    services: dict[tuple[str, str], None] = {}
    for play, step in plays:
        known = any(name in cluster.groups for name in groups_in(play.pattern))
        hosts = set(hosts_of(cluster, play)) if known else set()
        services |= {(role, host): None for role in play.roles for host in step.hosts if host in hosts}
    return tuple(services)


def make_rows(expected: Sequence[tuple[str, str]], results: Results) -> tuple[Row, ...]:
    """Return one row for each service and host: those of the plan, then those that occur only in events."""
    services = dict.fromkeys((*expected, *results.by_service))
    return tuple(_row(role, host, results) for role, host in services)


def _row(role: str, host: str, results: Results) -> Row:
    service = results.by_service.get((role, host))
    if service is None:
        return _not_checked(role, host, results)
    records, seconds = tuple(service.records), round(service.seconds, 3)
    failure = results.failure(role, host)
    verdict = _verdict(service, failure)
    bad = [record for record in records if record.verdict == verdict and verdict in ("fail", "unknown")]
    if bad:
        reason = "; ".join(dict.fromkeys(f"{_name(record)}: {record.reason or record.found}" for record in bad))
        fix = "; ".join(dict.fromkeys(record.fix for record in bad if record.fix))
    else:
        reason = (failure.message or f"{failure.task}: {failure.status}") if failure else ""
        fix = (failure.fix or (_APPLY if failure.status == "failed" else "")) if failure else ""
    return Row(role, host, verdict, _proven(service), reason, fix, seconds, records)


def _not_checked(role: str, host: str, results: Results) -> Row:
    """Return the row of a service whose tasks did not run on a host, with the reason."""
    failed = ((name, results.failure(name, host)) for name, other in results.by_service if other == host)
    earlier, failure = next(((name, failure) for name, failure in failed if failure), ("", None))
    if failure is None:
        reason = f"{_NOT_CHECKED}: the run ended early"
        return Row(role, host, "unknown", "nothing", reason, "resolve the problem that ended the run, then verify again")
    if failure.status == "unreachable":
        return Row(role, host, "unknown", "nothing", f"{_NOT_CHECKED}: the host does not answer", failure.fix)
    reason = f"{_NOT_CHECKED}: {earlier} failed earlier on this host"
    return Row(role, host, "unknown", "nothing", reason, f"repair {earlier}, then verify again")


def _verdict(service: ServiceResults, failure: HostResult | None) -> Outcome:
    """Return the worst verdict. An unreachable host is unknown; a role without verdicts passes if its tasks succeed."""
    words = {record.verdict for record in service.records}
    if failure is not None and "fail" not in words:
        return "unknown" if failure.status == "unreachable" else "fail"
    for word in ("fail", "unknown", "pass"):
        if word in words:
            return word
    return "pass" if service.tasks and not words else "skipped"


def _proven(service: ServiceResults) -> str:
    """Return the checks that passed, or the successful tasks of a role without verdicts."""
    if not service.records:
        return "; ".join(dict.fromkeys(service.tasks)) or "nothing"
    names = list(dict.fromkeys(_name(record) for record in service.records if record.verdict == "pass"))
    skipped = sum(record.verdict == "skipped" for record in service.records)
    more = [f"{len(names) - _SHOWN_CHECKS} more"] if len(names) > _SHOWN_CHECKS else []
    shown = ", ".join([*names[:_SHOWN_CHECKS], *more]) or "nothing"
    return f"{shown} ({skipped} skipped)" if skipped else shown


def _name(record: Verdict) -> str:
    return f"{record.check} {record.device}".strip()


def exit_code(of_run: int, rows: Iterable[Row]) -> int:
    """Return the exit code of the run if it is not 0; else 4 if a service fails or is unknown, or 0."""
    if of_run != EXIT_DONE:
        return of_run
    return EXIT_FAILED if any(row.verdict in ("fail", "unknown") for row in rows) else EXIT_DONE


def to_json(report: Report, rows: Iterable[Row], code: int) -> dict[str, Any]:
    """Return the result as plain data for JSON."""
    head = {"schema": SCHEMA, "cluster": report.cluster, "run": report.run, "started": report.started, "finished": report.finished}
    return {**head, "exit_code": code, "problem": report.problem, "services": [asdict(row) for row in rows]}


def _print(rows: Sequence[Row], report: Report, file: Path) -> None:
    table = plain_table("service", "host", "verdict", "verified")
    table.add_column("seconds", justify="right")
    rows = failures_first(rows)
    for row in fold_rows(rows) if len({row.host for row in rows}) > _SHOWN_HOSTS else rows:
        table.add_row(row.service, row.host, coloured(row.verdict), row.proven, f"{row.seconds:.1f}")
    emit_table(table)
    for text in problem_texts(rows):
        emit(with_inventory(text, file))
    if report.problem:
        emit(f"\n{report.problem}")
    counts = ", ".join(f"{number} {word}" for word, number in _counts(rows).items() if number)
    emit(f"\nverify {report.cluster}: {counts}; {duration_text(report.finished - report.started)}, run {report.run}")


def failures_first(rows: Iterable[Row]) -> list[Row]:
    """Return the rows grouped by service: services with failures first, then those with unknown rows; so too within a service."""
    by_service: dict[str, list[Row]] = {}
    for row in rows:
        by_service.setdefault(row.service, []).append(row)
    groups = [sorted(same, key=_gravity) for same in by_service.values()]
    return [row for same in sorted(groups, key=lambda same: _gravity(same[0])) for row in same]


def _gravity(row: Row) -> int:
    """Return 0 for a failure, 1 for an unknown state, 2 for anything else."""
    return {"fail": 0, "unknown": 1}.get(row.verdict, 2)


def _counts(rows: Iterable[Row]) -> dict[str, int]:
    counts = dict.fromkeys(("pass", "fail", "unknown", "skipped"), 0)
    for row in rows:
        counts[row.verdict] += 1
    return counts


def fold_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the bad rows, and one row for each service and verdict for the others, with the seconds of the slowest host."""
    good: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.verdict in ("fail", "unknown"):
            yield row
        else:
            good.setdefault((row.service, row.verdict), []).append(row)
    for same in good.values():
        slowest = max(row.seconds for row in same)
        yield Row(same[0].service, count(len(same), "host"), same[0].verdict, same[0].proven, seconds=slowest)


def problem_texts(rows: Iterable[Row]) -> Iterator[str]:
    """Yield each problem once, with its hosts, cause and fix; services that were not checked are one problem."""
    rows_by_problem: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.verdict in ("fail", "unknown"):
            service = "" if row.reason.startswith(_NOT_CHECKED) else row.service
            rows_by_problem.setdefault((row.verdict, service, row.reason, row.fix), []).append(row)
    for (word, service, reason, fix), same in rows_by_problem.items():
        hosts, services = (list(dict.fromkeys(names)) for names in zip(*((row.host, row.service) for row in same), strict=True))
        cause = reason.replace("\n", "\n  ") or "no error message"
        what = service or (services[0] if len(services) == 1 else f"{len(services)} services")
        yield f"\n{word} {what} on {', '.join(hosts)}\n  {cause}" + (f"\n  fix: {fix}" if fix else "")
