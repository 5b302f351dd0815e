"""The verbs `status`, `report` and `runs`, which read the files of earlier runs and contact no host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import clock_text, coloured, duration_text, emit, emit_json, emit_table, plain_table, program, short
from primus_bootstrap.cli.options import DEFAULT_HOSTS, AsJson, HostsFile, VaultPasswordFile
from primus_bootstrap.cli.report_view import is_running, print_report, progress_text, shares_line, summary_line
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.history import find_run, host_statuses, last_report, list_runs, read_report, running, running_report
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from rich.console import RenderableType

    from primus_bootstrap.engine.history import HostStatus
    from primus_bootstrap.inventory.cluster import Cluster


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("status")(status)
    app.command("report")(report)
    app.command("runs")(runs)


def status(hosts: HostsFile = DEFAULT_HOSTS, *, vault_password_file: VaultPasswordFile = None, as_json: AsJson = False) -> None:
    """Show the result of the last run on each host. A host without a run is `unknown`. Contacts no host."""
    cluster = load_cluster(hosts, vault_password_file=vault_password_file)
    statuses = host_statuses(cluster.state_dir)
    holder = read_holder(cluster.state_dir)
    last = last_report(cluster.state_dir)
    if as_json:
        emit_json(
            {
                "cluster": cluster.name,
                "running": holder.run if holder else None,
                "last_run": last.run if last else None,
                "hosts": [_status_json(host.name, statuses.get(host.name)) for host in cluster.hosts],
            }
        )
        return
    table = plain_table("host", "address", "state", "phases", "last run", "last changed by")
    for host in cluster.hosts:
        table.add_row(*_status_row(cluster, host.name, statuses.get(host.name)))
    emit_table(table)
    if holder:
        current = running_report(cluster.state_dir)
        progress = f"; {progress_text(current, time.time())}" if current else ""
        emit(f"\nrunning: {holder.verb} by {holder.user}@{holder.host}, pid {holder.pid}, run {holder.run}{progress}")
    if last:
        emit(f"\nlast run: {summary_line(last)}")
    elif not holder:
        emit(f"\nno run yet; start with: {program()} apply {short(cluster.path)}")


def _status_json(name: str, status: HostStatus | None) -> dict[str, object]:
    if status is None:
        return {"host": name, "state": "unknown", "phases": [], "last_run": None, "last_changed": None}
    state = {"host": name, "state": status.last_result, "phases": list(status.phases)}
    return {**state, "last_run": status.last_run, "last_changed": status.last_changed or None}


def _status_row(cluster: Cluster, name: str, status: HostStatus | None) -> tuple[RenderableType, ...]:
    address = cluster.connection(name).address
    if status is None:
        return name, address, coloured("unknown"), "-", "-", "-"
    return name, address, coloured(str(status.last_result)), ", ".join(status.phases), status.last_run, status.last_changed or "-"


def report(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    run: Annotated[
        str, typer.Option("--run", help="Id of the run, or its first characters; the current or last run by default.", metavar="ID")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include skipped checks and their reasons.")] = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the report of a run, also of one that has not ended: hosts, causes, fixes, verdicts. Contacts no host."""
    cluster = load_cluster(hosts, vault_password_file=vault_password_file)
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


def runs(hosts: HostsFile = DEFAULT_HOSTS, *, vault_password_file: VaultPasswordFile = None, as_json: AsJson = False) -> None:
    """List the runs of a cluster, newest first. Contacts no host."""
    cluster = load_cluster(hosts, vault_password_file=vault_password_file)
    now = running(cluster.state_dir)
    reports = [item for item in (read_report(folder) for folder in list_runs(cluster.state_dir)) if item]
    if as_json:
        emit_json([{key: value for key, value in item.to_json().items() if key not in ("hosts", "changes")} for item in reports])
        return
    table = plain_table("run", "verb", "started", "duration", "exit", "hosts")
    for item in reports:
        ended = duration_text(item.finished - item.started) if item.finished else "running" if item.run == now else "killed"
        bad = len(item.with_result("failed", "unreachable", "not_reached", "interrupted"))
        hosts_text = f"{len(item.hosts) - bad} of {len(item.hosts)}"
        table.add_row(item.run, item.verb, clock_text(item.started), ended, "-" if item.run == now else str(item.exit_code), hosts_text)
    emit_table(table)
