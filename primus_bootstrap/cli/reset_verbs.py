"""The verb `reset`, which restores hosts to their state before the first apply and lists the data that stay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import count, emit, emit_json, emit_table, plain_table
from primus_bootstrap.cli.day2 import ask_name, run_and_report
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Confirmed,
    Forks,
    HostsFile,
    Limit,
    VaultPasswordFile,
    examples,
)
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.run_verbs import load_for_run, run_options
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.kubernetes.day2 import refuse_partial_reset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.engine.report import Report

PLAYBOOK = "day2/reset.yml"
# The check under which the module put_back (roles/host_origin) reports the data that stay on a host.
KEPT = "reset.kept"

DeleteData = Annotated[bool, typer.Option("--delete-data", help="Also delete databases, backups, objects and home folders.")]


def register(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("reset", epilog=examples("reset --limit gpu1", "reset --delete-data --confirm prod"))(reset)


def reset(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    confirm: Confirmed = "",
    limit: Limit = None,
    delete_data: DeleteData = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove everything that apply installed, and restore what it replaced. Safe to repeat, also after an interruption.

    Data stay on the hosts unless --delete-data is set, and the report lists them. A later apply uses them again.
    """
    options = run_options("reset", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_for_run(hosts, options)
    plan = make_plan(cluster, playbook=PLAYBOOK, limit=limit)
    refuse_partial_reset(cluster, plan.hosts)
    if not confirm and not as_json:
        print_plan(cluster, plan, verb=options.verb)
    what = "Data are deleted." if delete_data else "Data stay."
    ask_name(cluster, confirm, verb="reset", what=f"This resets {count(len(plan.hosts), 'host')}. {what}")
    extra = (f"confirm={cluster.name}", *(("delete_data=true",) if delete_data else ()))
    report = run_and_report(cluster, plan, replace(options, limited=limit is not None, extra_vars=extra), as_json=as_json)
    kept = kept_records(report)
    if as_json:
        emit_json({**report.to_json(), "kept": [record.to_json() for record in kept]})
    else:
        _print_kept(kept, cluster.path)
    raise typer.Exit(report.exit_code)


def kept_records(report: Report) -> tuple[Verdict, ...]:
    """Return the records of data that stay, in the order of the hosts, without duplicates."""
    records = [record for host in report.hosts for record in host.verdicts if record.check == KEPT]
    return tuple({(record.host, record.reason): record for record in records}.values())


def _print_kept(records: Iterable[Verdict], file: Path) -> None:
    table = plain_table("host", "data", "how to remove them")
    for record in records:
        table.add_row(record.host, record.reason, with_inventory(record.fix, file))
    if table.row_count:
        emit("\ndata that stay on the hosts")
        emit_table(table)
