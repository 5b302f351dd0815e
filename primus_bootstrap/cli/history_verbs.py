"""`status`, `report`, `runs`: what earlier runs left. They read files and contact no host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import coloured, emit, emit_json, emit_table, plain_table, program, short
from primus_bootstrap.cli.live import duration_text
from primus_bootstrap.cli.options import DEFAULT_HOSTS, AsJson, HostsFile, VaultPasswordFile
from primus_bootstrap.cli.report_view import clock_text, print_report, shares_line, summary_line
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.history import find_run, host_statuses, last_report, list_runs, read_report, running
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from rich.console import RenderableType

    from primus_bootstrap.engine.history import HostStatus
    from primus_bootstrap.inventory.cluster import Cluster


def register(app: typer.Typer) -> None:
    """Mount the verbs."""
    app.command("status")(status)
    app.command("report")(report)
    app.command("runs")(runs)


def status(hosts: HostsFile = DEFAULT_HOSTS, *, vault_password_file: VaultPasswordFile = None, as_json: AsJson = False) -> None:
    """Show how each host stands after the last run that had it. A host that no run had is `unknown`."""
    cluster = load_cluster(hosts, vault_password_file=vault_password_file)
    known = host_statuses(cluster.state_dir)
    holder = read_holder(cluster.state_dir)
    last = last_report(cluster.state_dir)
    if as_json:
        emit_json(
            {
                "cluster": cluster.name,
                "running": holder.run if holder else None,
                "last_run": last.run if last else None,
                "hosts": [_status_json(host.name, known.get(host.name)) for host in cluster.hosts],
            }
        )
        return
    table = plain_table("host", "address", "state", "of phases", "last run", "last changed by")
    for host in cluster.hosts:
        table.add_row(*_status_row(cluster, host.name, known.get(host.name)))
    emit_table(table)
    if holder:
        emit(f"\nrunning now: {holder.verb} by {holder.user}@{holder.host}, pid {holder.pid}, run {holder.run}")
    emit(f"\nlast: {summary_line(last)}" if last else f"\nno run yet; start with: {program()} apply {short(cluster.path)}")


def _status_json(name: str, known: HostStatus | None) -> dict[str, object]:
    if known is None:
        return {"host": name, "state": "unknown", "phases": [], "last_run": None, "last_changed": None}
    state = {"host": name, "state": known.last_result, "phases": list(known.phases)}
    return {**state, "last_run": known.last_run, "last_changed": known.last_changed or None}


def _status_row(cluster: Cluster, name: str, known: HostStatus | None) -> tuple[RenderableType, ...]:
    address = cluster.connection(name).address
    if known is None:
        return name, address, coloured("unknown"), "-", "-", "-"
    return name, address, coloured(str(known.last_result)), ", ".join(known.phases), known.last_run, known.last_changed or "-"


def report(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    run: Annotated[str, typer.Option("--run", help="The run's id, or the beginning of it; default is the last one.", metavar="ID")] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also what was skipped, with its reason.")] = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's report again: hosts, causes, fixes, verdicts. Of a killed run, what its journal holds."""
    cluster = load_cluster(hosts, vault_password_file=vault_password_file)
    found = read_report(find_run(cluster.state_dir, run)) if run else last_report(cluster.state_dir)
    if found is None:
        raise PlanError(f"{cluster.name} has no report yet", fix=f"primus-bootstrap apply {cluster.path}")
    if as_json:
        emit_json(found.to_json())
        return
    emit(f"{found.verb} {found.cluster}, run {found.run}, started {clock_text(found.started)}\n")
    print_report(found, cluster.path, everything=everything)
    if shares := shares_line(found):
        emit(shares)


def runs(hosts: HostsFile = DEFAULT_HOSTS, *, vault_password_file: VaultPasswordFile = None, as_json: AsJson = False) -> None:
    """List the runs of a cluster, newest first."""
    cluster = load_cluster(hosts, vault_password_file=vault_password_file)
    now = running(cluster.state_dir)
    found = [item for item in (read_report(folder) for folder in list_runs(cluster.state_dir)) if item]
    if as_json:
        emit_json([{key: value for key, value in item.to_json().items() if key not in ("hosts", "changes")} for item in found])
        return
    table = plain_table("run", "verb", "started", "took", "exit", "hosts")
    for item in found:
        ended = duration_text(item.finished - item.started) if item.finished else "running" if item.run == now else "killed"
        bad = len(item.with_result("failed", "unreachable", "not_reached", "interrupted"))
        hosts_text = f"{len(item.hosts) - bad} of {len(item.hosts)}"
        table.add_row(item.run, item.verb, clock_text(item.started), ended, "-" if item.run == now else str(item.exit_code), hosts_text)
    emit_table(table)
