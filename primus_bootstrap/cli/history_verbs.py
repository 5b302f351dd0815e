"""The verbs `report` and `runs`, which read the files of earlier runs and contact no host."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from primus_bootstrap.cli.cluster_loading import open_cluster
from primus_bootstrap.cli.console import clock_text, duration_text, emit, emit_json, emit_table, plain_table
from primus_bootstrap.cli.options import DEFAULT_HOSTS, AsJson, AskVaultPass, HostsFile, VaultPasswordFile
from primus_bootstrap.cli.report_view import is_running, print_report, progress_text, shares_line
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.history import find_run, last_report, list_runs, read_report, running, running_report, running_runs


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("report")(report)
    app.command("runs")(runs)


def report(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    run: Annotated[
        str, typer.Option("--run", help="Id of the run, or its first characters; the current or last run by default.", metavar="ID")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include skipped checks and their reasons.")] = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the report of a run, also of one that has not ended: hosts, causes, fixes, verdicts. Contacts no host."""
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    current = running_report(cluster.state_dir)
    folder = find_run(cluster.state_dir, run) if run else None
    if folder and not (current and folder.run == current.run):
        result = read_report(folder)
    elif current:
        result = current
    else:
        result = last_report(cluster.state_dir)
    if result is None and running(cluster.state_dir):
        raise PlanError(f"the first run of {cluster.name} has just started", fix="run the same command again in a few seconds")
    if result is None:
        raise PlanError(f"{cluster.name} has no report yet", fix="primus-bootstrap apply hosts.yaml")
    if as_json:
        emit_json({**result.to_json(), **({"exit_code": None} if is_running(result) else {})})
        return
    emit(f"{result.verb} {result.cluster}, run {result.run}, started {clock_text(result.started)}\n")
    print_report(result, cluster.path, everything=everything)
    if is_running(result):
        emit(f"running: {progress_text(result, time.time())}")
    if shares := shares_line(result):
        emit(shares)


def runs(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a cluster, newest first. Contacts no host."""
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    now = running_runs(cluster.state_dir)
    reports = [item for item in (read_report(folder) for folder in list_runs(cluster.state_dir)) if item]
    if as_json:
        emit_json([{key: value for key, value in item.to_json().items() if key not in ("hosts", "changes")} for item in reports])
        return
    table = plain_table("run", "verb", "started", "duration", "exit", "hosts")
    for item in reports:
        ended = duration_text(item.finished - item.started) if item.finished else "running" if item.run in now else "killed"
        bad = len(item.with_result("failed", "unreachable", "not_reached", "interrupted"))
        hosts_text = f"{len(item.hosts) - bad} of {len(item.hosts)}"
        table.add_row(item.run, item.verb, clock_text(item.started), ended, "-" if item.run in now else str(item.exit_code), hosts_text)
    emit_table(table)
