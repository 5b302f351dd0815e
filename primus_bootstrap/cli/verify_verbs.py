"""`verify`: each role's own proof that it has its effect, as one table: service, host, verdict, what was proven, seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from primus_bootstrap import content
from primus_bootstrap.cli.console import coloured, emit, emit_json, emit_table
from primus_bootstrap.cli.live import duration_text
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Forks,
    HostsFile,
    Limit,
    VaultPasswordFile,
    ask_password,
)
from primus_bootstrap.cli.run_verbs import run_plan
from primus_bootstrap.engine.events import Event, HostResult, Recap, VerdictFound
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.playbooks import groups_in, hosts_of, load_phases
from primus_bootstrap.engine.report import EXIT_DONE, EXIT_FAILED
from primus_bootstrap.engine.run import Options
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from primus_bootstrap.core.verdicts import Outcome, Verdict
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.inventory.cluster import Cluster

SCHEMA = "primus.verify/1"
PHASE = "verify"
# Above this many hosts, rows of one service that are not worth a look become one line.
_SHOWN_HOSTS = 40
_SHOWN_CHECKS = 6
# What mends most of what a role has found and gave no fix for.
_APPLY = "primus-bootstrap apply, then verify again"
_NOT_LOOKED_AT = "not looked at"
# Ansible checks a role's arguments with a task of its own; it looks at no host.
_ARGUMENT_CHECK = "Validating arguments against arg spec"


@dataclass(frozen=True, slots=True)
class Row:
    """One service on one host. `reason` and `fix` are empty on a pass; `seconds` is the time of its tasks on that host."""

    service: str
    host: str
    verdict: Outcome
    proven: str
    reason: str = ""
    fix: str = ""
    seconds: float = 0.0
    records: tuple[Verdict, ...] = ()


@dataclass(slots=True)
class Proof:
    """What the tasks of one role said on one host."""

    records: list[Verdict] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    failures: list[HostResult] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True)
class Proofs:
    """Collects the events of a run by role and host. A record belongs to the role whose task handed it over."""

    by_place: dict[tuple[str, str], Proof] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    recapped: bool = False
    _role: str = ""

    def add(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case HostResult():
                self._role = event.role or event.phase
                self._add_result(event, self.at(self._role, event.host))
            case VerdictFound():
                # Records follow the result that they came with; one task may speak for several hosts.
                self.at(self._role, event.verdict.host).records.append(event.verdict)
            case Recap():
                self.lost |= {*event.failed, *event.unreachable}
                self.recapped = True
            case _:
                pass

    def at(self, role: str, host: str) -> Proof:
        """Return the proof of a role on a host."""
        return self.by_place.setdefault((role, host), Proof())

    def _add_result(self, event: HostResult, proof: Proof) -> None:
        proof.seconds += event.seconds
        if event.status in ("failed", "unreachable"):
            proof.failures.append(event)
        elif event.status in ("ok", "changed") and not event.task.startswith(_ARGUMENT_CHECK):
            proof.tasks.append(event.task)

    def failure(self, role: str, host: str) -> HostResult | None:
        """Return the failure that put the host out; one that a rescue mended did not."""
        failures = self.by_place[role, host].failures if (role, host) in self.by_place else []
        return failures[-1] if failures and (host in self.lost or not self.recapped) else None


def register(app: typer.Typer) -> None:
    """Mount the verb."""
    app.command("verify")(verify)


def verify(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    limit: Limit = None,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Prove every service on every host, and show what was proven. Changes nothing.

    Each role proves its effect (a login, a mount that holds data, a job that ran), not its files. Exit code 4 where
    anything fails or is unknown; a service that was not looked at is unknown, never good.
    """
    password = ask_password("Vault password", wanted=ask_vault_pass)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=password)
    made = make_plan(cluster, phases=(PHASE,), limit=limit)
    options = Options(
        verb="verify",
        limited=limit is not None,
        become_password=ask_password("sudo password of the hosts", wanted=ask_become_pass) or "",
        vault_password=password or "",
        vault_password_file=vault_password_file,
        forks=forks,
    )
    proofs = Proofs()
    report = run_plan(cluster, made, options, proofs.add)
    rows = make_rows(expected_places(cluster, made), proofs)
    code = exit_code(report.exit_code, rows)
    if as_json:
        emit_json(to_json(report, rows, code))
    else:
        _print(rows, report)
    raise typer.Exit(code)


def expected_places(cluster: Cluster, made: Plan) -> tuple[tuple[str, str], ...]:
    """Return every (role, host) that the plan's playbooks name, role by role in their order."""
    steps = {step.playbook: step for step in made.steps}
    plays = [
        (play, steps[phase.playbook]) for phase in load_phases(content.playbooks_dir()) if phase.playbook in steps for play in phase.plays
    ]
    found: dict[tuple[str, str], None] = {}
    for play, step in plays:
        named = any(name in cluster.groups for name in groups_in(play.pattern))
        chosen = set(hosts_of(cluster, play)) if named else set()
        found |= {(role, host): None for role in play.roles for host in step.hosts if host in chosen}
    return tuple(found)


def make_rows(expected: Sequence[tuple[str, str]], proofs: Proofs) -> tuple[Row, ...]:
    """Return one row for each service and host: those that the plan names, then those of which only events told."""
    places = dict.fromkeys((*expected, *proofs.by_place))
    return tuple(_row(role, host, proofs) for role, host in places)


def _row(role: str, host: str, proofs: Proofs) -> Row:
    proof = proofs.by_place.get((role, host))
    if proof is None:
        return _not_looked_at(role, host, proofs)
    records, seconds = tuple(proof.records), round(proof.seconds, 3)
    failure = proofs.failure(role, host)
    verdict = _verdict(proof, failure)
    bad = [record for record in records if record.verdict == verdict and verdict in ("fail", "unknown")]
    if bad:
        reason = "; ".join(dict.fromkeys(f"{_name(record)}: {record.reason or record.found}" for record in bad))
        fix = "; ".join(dict.fromkeys(record.fix for record in bad if record.fix))
    else:
        reason = (failure.message or f"{failure.task}: {failure.status}") if failure else ""
        fix = (failure.fix or (_APPLY if failure.status == "failed" else "")) if failure else ""
    return Row(role, host, verdict, _proven(proof), reason, fix, seconds, records)


def _not_looked_at(role: str, host: str, proofs: Proofs) -> Row:
    """Return the row of a service whose tasks never ran on a host, with what kept them from it."""
    failed = ((name, proofs.failure(name, host)) for name, other in proofs.by_place if other == host)
    before, failure = next(((name, found) for name, found in failed if found), ("", None))
    if failure is None:
        reason = f"{_NOT_LOOKED_AT}: the run ended before it"
        return Row(role, host, "unknown", "nothing", reason, "mend what ended the run, then verify again")
    if failure.status == "unreachable":
        return Row(role, host, "unknown", "nothing", f"{_NOT_LOOKED_AT}: the host does not answer", failure.fix)
    reason = f"{_NOT_LOOKED_AT}, because {before} failed on this host before"
    return Row(role, host, "unknown", "nothing", reason, f"mend {before}, then verify again")


def _verdict(proof: Proof, failure: HostResult | None) -> Outcome:
    """Return the worst word; a host that does not answer is unknown, a role without a record says by its tasks."""
    words = {record.verdict for record in proof.records}
    if failure is not None and "fail" not in words:
        return "unknown" if failure.status == "unreachable" else "fail"
    for word in ("fail", "unknown", "pass"):
        if word in words:
            return word
    return "pass" if proof.tasks and not words else "skipped"


def _proven(proof: Proof) -> str:
    """Say what holds: the checks that passed, or where a role has no records the tasks that went through."""
    if not proof.records:
        return "; ".join(dict.fromkeys(proof.tasks)) or "nothing"
    names = list(dict.fromkeys(_name(record) for record in proof.records if record.verdict == "pass"))
    skipped = sum(record.verdict == "skipped" for record in proof.records)
    more = [f"{len(names) - _SHOWN_CHECKS} more"] if len(names) > _SHOWN_CHECKS else []
    shown = ", ".join([*names[:_SHOWN_CHECKS], *more]) or "nothing"
    return f"{shown} ({skipped} skipped)" if skipped else shown


def _name(record: Verdict) -> str:
    return f"{record.check} {record.device}".strip()


def exit_code(of_run: int, rows: Iterable[Row]) -> int:
    """Return 4 where anything fails or is unknown; what ended the run itself (130, 4) stays."""
    if of_run != EXIT_DONE:
        return of_run
    return EXIT_FAILED if any(row.verdict in ("fail", "unknown") for row in rows) else EXIT_DONE


def to_json(report: Report, rows: Iterable[Row], code: int) -> dict[str, Any]:
    """Return the result for machines."""
    head = {"schema": SCHEMA, "cluster": report.cluster, "run": report.run, "started": report.started, "finished": report.finished}
    return {**head, "exit_code": code, "problem": report.problem, "services": [asdict(row) for row in rows]}


def _print(rows: Sequence[Row], report: Report) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("service", "host", "verdict", "proven"):
        table.add_column(name, overflow="fold")
    table.add_column("seconds", justify="right")
    for row in fold_rows(rows) if len({row.host for row in rows}) > _SHOWN_HOSTS else rows:
        table.add_row(row.service, row.host, coloured(row.verdict), row.proven, f"{row.seconds:.1f}")
    emit_table(table)
    for text in problem_texts(rows):
        emit(text)
    if report.problem:
        emit(f"\n{report.problem}")
    counts = ", ".join(f"{number} {word}" for word, number in _counts(rows).items() if number)
    emit(f"\nverify {report.cluster}: {counts}; {duration_text(report.finished - report.started)}, run {report.run}")


def _counts(rows: Iterable[Row]) -> dict[str, int]:
    counts = dict.fromkeys(("pass", "fail", "unknown", "skipped"), 0)
    for row in rows:
        counts[row.verdict] += 1
    return counts


def fold_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield what is wrong row by row, and the rest as one row a service and verdict, with the slowest host's seconds."""
    good: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.verdict in ("fail", "unknown"):
            yield row
        else:
            good.setdefault((row.service, row.verdict), []).append(row)
    for same in good.values():
        slowest = max(row.seconds for row in same)
        yield Row(same[0].service, f"{len(same)} hosts", same[0].verdict, same[0].proven, seconds=slowest)


def problem_texts(rows: Iterable[Row]) -> Iterator[str]:
    """Yield each problem once, with every host that has it, its cause and its fix; what one problem hides is one more."""
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.verdict in ("fail", "unknown"):
            service = "" if row.reason.startswith(_NOT_LOOKED_AT) else row.service
            found.setdefault((row.verdict, service, row.reason, row.fix), []).append(row)
    for (word, service, reason, fix), same in found.items():
        hosts, services = (list(dict.fromkeys(names)) for names in zip(*((row.host, row.service) for row in same), strict=True))
        cause = reason.replace("\n", "\n  ") or "no cause was given"
        what = service or (services[0] if len(services) == 1 else f"{len(services)} services")
        yield f"\n{word} {what} on {', '.join(hosts)}\n  {cause}" + (f"\n  fix: {fix}" if fix else "")
