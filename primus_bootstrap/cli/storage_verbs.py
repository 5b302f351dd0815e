"""The verb `storage migrate`, which moves the files of the shared file system to the cluster's object store."""

from __future__ import annotations

from dataclasses import replace

import typer

from primus_bootstrap.cli.console import emit_json
from primus_bootstrap.cli.day2 import ask_name, run_and_report
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Confirmed,
    Forks,
    HostsFile,
    VaultPasswordFile,
    examples,
)
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.cli.run_verbs import load_for_run, run_options
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.plan import make_plan

PLAYBOOK = "day2/migrate_storage.yml"
# Hosts of these groups are needed: where the files are, where they go, and who mounts them.
_GROUPS = ("juicefs_store", "object_store", "juicefs_client")
storage_app = typer.Typer(no_args_is_help=True, help="Move the files of the shared file system to another store.")


def register(app: typer.Typer) -> None:
    """Register the verb in its group."""
    storage_app.command("migrate", epilog=examples("storage migrate", "storage migrate --confirm prod"))(migrate)
    app.add_typer(storage_app, name="storage")


def migrate(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    confirm: Confirmed = "",
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Move the files of the shared file system from the sftp store (group juicefs_store) to the group object_store.

    Files stay in use while they are copied. The last step unmounts them on all clients; it is refused while a program uses them.
    Safe to repeat: an interrupted run is continued. The former store keeps its data.
    """
    options = run_options("storage migrate", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_for_run(hosts, options)
    for group in _GROUPS:
        if not cluster.groups.get(group):
            raise PlanError(f"the group {group} has no host", fix="add one in hosts.yaml; docs/storage.md has the steps")
    plan = make_plan(cluster, playbook=PLAYBOOK)
    if not confirm and not as_json:
        print_plan(cluster, plan, verb=options.verb)
    ask_name(cluster, confirm, verb="storage migrate", what="This copies all files, and unmounts them for the last step.")
    report = run_and_report(cluster, plan, replace(options, extra_vars=(f"confirm={cluster.name}",)), as_json=as_json)
    if as_json:
        emit_json(report.to_json())
    raise typer.Exit(report.exit_code)
