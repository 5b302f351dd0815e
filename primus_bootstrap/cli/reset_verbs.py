"""`reset`: hosts back to what they were before the first apply, and what was kept, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import emit, emit_json, emit_table, plain_table
from primus_bootstrap.cli.day2 import ask_name, run_and_report
from primus_bootstrap.cli.live import count
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
)
from primus_bootstrap.cli.run_verbs import given_options, print_plan
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.day2 import refuse_part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.engine.report import Report

PLAYBOOK = "day2/reset.yml"
# The check under which the module put_back (roles/host_origin) says what it left on a host.
KEPT = "reset.kept"

DeleteData = Annotated[bool, typer.Option("--delete-data", help="Data go as well: databases, backups, objects, home folders of accounts.")]


def register(app: typer.Typer) -> None:
    """Mount the verb."""
    app.command("reset")(reset)


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
    """Take everything that apply brought off the hosts, and put back what it replaced. Safe to repeat, and to kill and repeat.

    Data stay where they are unless --delete-data is given; the report names them. A later apply works with them.
    """
    options = given_options("reset", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=options.vault_password or None)
    made = make_plan(cluster, playbook=PLAYBOOK, limit=limit)
    refuse_part(cluster, made.hosts)
    if not confirm and not as_json:
        print_plan(cluster, made)
    what = "Data go as well." if delete_data else "Data stay."
    ask_name(cluster, confirm, verb="reset", what=f"This resets {count(len(made.hosts), 'host')}. {what}")
    words = (f"confirm={cluster.name}", *(("delete_data=true",) if delete_data else ()))
    report = run_and_report(cluster, made, replace(options, limited=limit is not None, extra_vars=words), as_json=as_json)
    kept = kept_records(report)
    if as_json:
        emit_json({**report.to_json(), "kept": [record.to_json() for record in kept]})
    else:
        _print_kept(kept)
    raise typer.Exit(report.exit_code)


def kept_records(report: Report) -> tuple[Verdict, ...]:
    """Return what the hosts say they kept, in the order of the hosts; what two roles keep is said once."""
    found = [record for host in report.hosts for record in host.verdicts if record.check == KEPT]
    return tuple({(record.host, record.reason): record for record in found}.values())


def _print_kept(records: Iterable[Verdict]) -> None:
    table = plain_table("host", "kept", "to remove it")
    for record in records:
        table.add_row(record.host, record.reason, record.fix)
    if table.row_count:
        emit("\nleft on the hosts")
        emit_table(table)
