"""The verb `status`: asks every host for its state, and adds what earlier runs say about it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.cli.cluster_loading import open_cluster
from primus_bootstrap.cli.console import age_text, coloured, count, emit, emit_json, emit_table, plain_table
from primus_bootstrap.cli.fleet_verbs import targets_of_limit
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskVaultPass,
    HostsFile,
    Limit,
    Timeout,
    VaultPasswordFile,
    examples,
)
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.report_view import progress_text, summary_line
from primus_bootstrap.cli.service_states import read_all_states
from primus_bootstrap.engine.history import running_report
from primus_bootstrap.engine.host_records import host_records, last_change
from primus_bootstrap.engine.host_states import STATES, host_state
from primus_bootstrap.engine.lock import read_holder
from primus_bootstrap.lab.lab_values import heal_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import typer

    from primus_bootstrap.engine.host_records import HostRecord, RunMark
    from primus_bootstrap.engine.host_states import HostState
    from primus_bootstrap.engine.lock import Holder
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.inventory.cluster import Cluster

SCHEMA = "primus.status/1"


@dataclass(frozen=True, slots=True)
class _Row:
    """One host: its state, its record, and the inventory files that were edited since its last full apply."""

    state: HostState
    record: HostRecord
    edited: tuple[str, ...]


def register(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("status", epilog=examples("status", "status --limit gpu_node --json"))(status)


def status(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    limit: Limit = None,
    timeout_s: Timeout = 15.0,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask every host for its state: READY, DEGRADED, QUARANTINED, UNREACHABLE or UNKNOWN, and why. Changes nothing.

    Also shows the last full apply, the age of the last proof (a run that verified the services) and the drift: inventory files that
    were edited since that apply, and the changes that the last complete diff found. Other runs do not change these columns.
    """
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    names = [target.host for target in targets_of_limit(cluster, limit or "all")]
    found = read_all_states(cluster, names, timeout_s=timeout_s)
    holder = read_holder(cluster.state_dir)
    records = host_records(cluster.state_dir, names)
    rows = [
        _Row(_of_lab(cluster, host_state(answer, service, record, applying=holder is not None)), record, record.edited(cluster.sums))
        for answer, service in found
        for record in (records[service.host],)
    ]
    last = last_change(cluster.state_dir)
    if as_json:
        emit_json(_to_json(cluster, rows, holder, last))
        return
    _print_rows(cluster, rows, time.time())
    _print_runs(cluster, holder, last)


def _of_lab(cluster: Cluster, state: HostState) -> HostState:
    """Return the state; the fix for a lab's host that does not answer starts it again."""
    heal = heal_command(cluster.path.parent, cluster.name, state.host) if state.state == "UNREACHABLE" else ""
    return replace(state, fix=heal) if heal else state


def _to_json(cluster: Cluster, rows: Iterable[_Row], holder: Holder | None, last: Report | None) -> dict[str, Any]:
    hosts = [
        {
            **asdict(row.state),
            "address": cluster.connection(row.state.host).address,
            "applied": asdict(row.record.applied) if row.record.applied else None,
            "proven": asdict(row.record.proven) if row.record.proven else None,
            "drift": {"files": [_file(cluster.path, name) for name in row.edited], "changes": row.record.drift},
        }
        for row in rows
    ]
    running = holder.run if holder else None
    return {"schema": SCHEMA, "cluster": cluster.name, "running": running, "last_change": last.run if last else None, "hosts": hosts}


def _print_rows(cluster: Cluster, rows: Sequence[_Row], now: float) -> None:
    table = plain_table("host", "address", "state", "last full apply", "last proof", "drift", "why")
    for row in rows:
        state, record = row.state, row.record
        columns = (_age(record.applied, now), _proof(record.proven, now), _drift(cluster.path, row))
        table.add_row(state.host, cluster.connection(state.host).address, coloured(state.state), *columns, state.reason)
    emit_table(table)
    for text in _fixes(rows):
        emit(with_inventory(text, cluster.path))
    counts = Counter(row.state.state for row in rows)
    emit(f"\n{cluster.name}: {', '.join(f'{counts[state]} {state}' for state in STATES if counts[state])}")


def _print_runs(cluster: Cluster, holder: Holder | None, last: Report | None) -> None:
    if holder:
        current = running_report(cluster.state_dir)
        progress = f"; {progress_text(current, time.time())}" if current else ""
        emit(f"running: {holder.verb} by {holder.user}@{holder.host}, pid {holder.pid}, run {holder.run}{progress}")
    if last:
        emit(f"last change: {summary_line(last)}")


def _age(mark: RunMark | None, now: float) -> str:
    return age_text(now - mark.at) if mark else "never"


def _proof(mark: RunMark | None, now: float) -> str:
    outcome = "failed " if mark and mark.problem else "unknown " if mark and mark.unclear else ""
    return outcome + _age(mark, now)


def _drift(path: Path, row: _Row) -> str:
    """Return the edited files and the changes of the last diff; a dash if neither is known."""
    edited = [f"{_file(path, row.edited[0])} edited" + (f", {len(row.edited) - 1} more" if row.edited[1:] else "")] if row.edited else []
    known = [count(row.record.drift, "change") if row.record.drift else "none"] if row.record.drift is not None else []
    return "; ".join([*edited, *(known if not edited or row.record.drift else [])]) or "-"


def _file(path: Path, name: str) -> str:
    return name or path.name


def _fixes(rows: Iterable[_Row]) -> Iterable[str]:
    """Yield each fix once, with its hosts."""
    hosts: dict[str, list[str]] = {}
    for row in rows:
        if row.state.fix:
            hosts.setdefault(row.state.fix, []).append(row.state.host)
    if hosts:
        yield ""
    yield from (f"{', '.join(names)}\n  fix: {fix}" for fix, names in hosts.items())
