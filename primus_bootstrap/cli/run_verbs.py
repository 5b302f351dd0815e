"""The verbs `plan`, `diff` and `apply`, and code that other verbs with a run share."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.cluster_loading import open_cluster
from primus_bootstrap.cli.console import count, emit, emit_json, say, short
from primus_bootstrap.cli.extra_vars import check_extra_vars
from primus_bootstrap.cli.kubernetes_view import show_part
from primus_bootstrap.cli.live import LiveView
from primus_bootstrap.cli.missing_secrets import default_password_file, offer_secrets
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    ExtraVars,
    Forks,
    FromPhase,
    HostsFile,
    Limit,
    Phases,
    Show,
    VaultPasswordFile,
    Yes,
    ask_password,
    examples,
)
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.cli.report_view import next_steps, print_report
from primus_bootstrap.core.errors import InventoryError, PlanError, UsageError
from primus_bootstrap.engine.estimates import estimate_phases
from primus_bootstrap.engine.events import Event, HostResult
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from primus_bootstrap.engine.lock import HeldLock
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.inventory.cluster import Cluster


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("plan", epilog=examples("plan", "plan inventory/prod --limit 'gpu_node:!gpu7'", "plan --show kubernetes"))(plan)
    app.command("diff", epilog=examples("diff", "diff --phase storage --limit gpu1"))(diff)
    app.command("apply", epilog=examples("apply", "apply --from slurm --yes", "apply --phase gpu --limit gpu1,gpu2"))(apply)


def plan(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    phases: Phases = None,
    start: FromPhase = None,
    limit: Limit = None,
    extra_vars: ExtraVars = None,
    vault_password_file: VaultPasswordFile = None,
    ask_vault_pass: AskVaultPass = False,
    show: Show = None,
    details: Annotated[bool, typer.Option("--verbose", "-v", help="Also list the host names, roles and host patterns.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what apply would do: the phases, their hosts, why, and for how long. Contacts no host.

    The durations are those of earlier runs that changed about as much. --extra-vars is checked, but changes no plan.
    """
    for value in extra_vars or ():
        check_extra_vars(value)
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    if show:
        show_part(cluster, show, as_json=as_json)
        return
    result = make_plan(cluster, phases=phases or (), start=start, limit=limit)
    if as_json:
        estimates = estimate_phases(cluster.state_dir, result.steps)
        emit_json({**result.to_json(), "expected_s": {phase: estimate.expected_s for phase, estimate in estimates.items()}})
        return
    print_plan(cluster, result, details=details)


def diff(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    phases: Phases = None,
    start: FromPhase = None,
    limit: Limit = None,
    extra_vars: ExtraVars = None,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what apply would change on every host, with the differences. Changes nothing.

    Exit code 0 means that every host answered, whether or not something would change.
    """
    cluster, plan, options = _prepare(
        hosts, phases, start, limit, run_options("diff", extra_vars, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    )
    changes: list[HostResult] = []

    def collect(event: Event) -> None:
        if isinstance(event, HostResult) and event.status == "changed":
            changes.append(event)

    report = run_plan(cluster, plan, options, collect)
    if as_json:
        emit_json({**report.to_json(), "differences": [_difference(change) for change in changes]})
    else:
        for change in changes:
            emit(f"{change.host}: {change.role or change.phase}: {change.task}")
            if change.diff:
                emit("\n".join(f"    {line}" for line in change.diff.splitlines()))
        print_report(report, cluster.path)
        emit("nothing would change" if not changes and report.exit_code == 0 else "no host was changed; apply would make these changes")
    raise typer.Exit(report.exit_code)


def apply(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    phases: Phases = None,
    start: FromPhase = None,
    limit: Limit = None,
    extra_vars: ExtraVars = None,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Configure the hosts as hosts.yaml declares, phase by phase. Safe to repeat, also after an interruption.

    First hosts.yaml is checked as a whole; if it has a problem, no host is contacted (exit code 2). If a host fails or does not
    answer, the others continue, and the report lists task, cause and fix (exit code 4). If only secrets are missing, apply offers to
    generate them (on a terminal, without --yes).
    """
    options = run_options("apply", extra_vars, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    try:
        cluster, plan, options = _prepare(hosts, phases, start, limit, options)
    except InventoryError as error:
        if yes or options.vault_password or not (password_file := offer_secrets(hosts, error, vault_password_file=vault_password_file)):
            raise
        cluster, plan, options = _prepare(hosts, phases, start, limit, replace(options, vault_password_file=password_file))
    if not yes:
        _confirm(cluster, plan)
    report = run_plan(cluster, plan, options)
    if as_json:
        emit_json(report.to_json())
    else:
        print_report(report, cluster.path)
        emit(next_steps(cluster, report))
    raise typer.Exit(report.exit_code)


def run_options(
    verb: str,
    extra_vars: Sequence[str] | None,
    forks: int,
    ask_become_pass: bool,
    ask_vault_pass: bool,
    vault_password_file: Path | None,
) -> Options:
    """Return the options of a run from those of a verb; ask for passwords."""
    for value in extra_vars or ():
        check_extra_vars(value)
    return Options(
        verb=verb,
        extra_vars=tuple(extra_vars or ()),
        check=verb == "diff",
        become_password=ask_password("sudo password of the hosts", ask=ask_become_pass) or "",
        vault_password=ask_password("Vault password", ask=ask_vault_pass) or "",
        vault_password_file=vault_password_file,
        forks=forks,
    )


def load_for_run(path: Path, options: Options) -> Cluster:
    """Load the cluster with the Vault password of a run's options."""
    return load_cluster(path, vault_password_file=options.vault_password_file, ask_vault_pass=options.vault_password or None)


def _prepare(
    hosts: Path, phases: Sequence[str] | None, start: str | None, limit: str | None, options: Options
) -> tuple[Cluster, Plan, Options]:
    cluster = load_for_run(hosts, options)
    plan = make_plan(cluster, phases=phases or (), start=start, limit=limit)
    return cluster, plan, replace(options, limited=limit is not None, complete=not phases and not start)


def _confirm(cluster: Cluster, plan: Plan) -> None:
    """Show the plan and ask for confirmation."""
    need_terminal("apply", fix="add --yes")
    print_plan(cluster, plan)
    typer.confirm(f"Apply this to {count(len(plan.hosts), 'host')}?", abort=True, err=True)


def need_terminal(verb: str, *, fix: str) -> None:
    """Fail if a question cannot be answered.

    Raises:
        PlanError: There is no terminal.
    """
    if not sys.stdin.isatty():
        raise PlanError(f"{verb} asks for confirmation before it changes a host, but there is no terminal", fix=fix)


def run_plan(
    cluster: Cluster, plan: Plan, options: Options, listener: Callable[[Event], None] | None = None, *, lock: HeldLock | None = None
) -> Report:
    """Run a plan with the live view; SIGINT and SIGTERM stop it.

    `listener` is called with every event. `lock` is the cluster's lock if the verb holds it.

    Raises:
        UsageError: A variable file is encrypted, and no Vault password was given.
    """
    _check_vault_password(cluster)
    view = LiveView(options.verb, plan, estimate_phases(cluster.state_dir, plan.steps, verb=options.verb))

    def on_event(event: Event) -> None:
        view.handle(event)
        if listener:
            listener(event)

    with _cancelled_by_signals() as cancel, view:
        return apply_plan(cluster, plan, options, on_event=on_event, cancel=cancel, lock=lock)


def _check_vault_password(cluster: Cluster) -> None:
    """Fail before Ansible does so on every host, with a message that names neither the file nor the option."""
    if cluster.encrypted_files:
        written = default_password_file(cluster)
        fix = f"add --vault-password-file {short(written) if written.is_file() else 'FILE'}, or --ask-vault-pass"
        raise UsageError(f"{', '.join(cluster.encrypted_files)}: encrypted with Vault, and no password was given", fix=fix)


@contextmanager
def _cancelled_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set."""
    cancel = threading.Event()

    def stop(number: int, _frame: object) -> None:
        if not cancel.is_set():
            say(f"{signal.Signals(number).name}: stopping Ansible; tasks that are running on hosts may still finish there")
        cancel.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancel
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _difference(change: HostResult) -> dict[str, str]:
    return {"host": change.host, "phase": change.phase, "role": change.role, "task": change.task, "diff": change.diff}
