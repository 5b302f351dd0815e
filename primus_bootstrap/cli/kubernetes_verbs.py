"""The verbs `backup`, `restore`, `renew` and `upgrade`, for Kubernetes clusters that Kubespray created."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import emit_json
from primus_bootstrap.cli.day2 import ask_name, ask_yes, run_and_report, split_words
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Confirmed,
    Forks,
    HostsFile,
    VaultPasswordFile,
    Yes,
)
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.cli.run_verbs import load_for_run, run_options
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.kubernetes.day2 import check_upgrade_step
from primus_bootstrap.kubernetes.preflight import refuse_foreign

if TYPE_CHECKING:
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

backup_app = typer.Typer(no_args_is_help=True, help="Back up Kubernetes' etcd.")
restore_app = typer.Typer(no_args_is_help=True, help="Restore Kubernetes' etcd from a backup.")
renew_app = typer.Typer(no_args_is_help=True, help="Renew Kubernetes' certificates.")
upgrade_app = typer.Typer(no_args_is_help=True, help="Upgrade Kubernetes.")

From = Annotated[
    str, typer.Option("--from", help="Name of the backup on the controller, or a folder; the newest by default.", metavar="NAME")
]
DespiteKeys = Annotated[
    bool, typer.Option("--despite-keys", help="Restore even if keys or certificate authorities changed since the backup.")
]
NoCopy = Annotated[bool, typer.Option("--no-copy", help="Do not copy the backup to the controller.")]
Version = Annotated[
    list[str],
    typer.Argument(metavar="[HOSTS.YAML] VERSION", show_default=False, help="The cluster's hosts.yaml, and the version of Kubernetes."),
]
Batch = Annotated[
    int, typer.Option("--batch", min=0, help="Number of workers of a rack to upgrade at the same time; 0 for the whole rack.", metavar="N")
]
Now = Annotated[bool, typer.Option("--now", help="Renew all certificates, also those that are valid for long.")]


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The run of a verb: cluster, plan and options."""

    cluster: Cluster
    plan: Plan
    options: Options
    as_json: bool

    def start(self, extra_vars: tuple[str, ...]) -> None:
        """Run the plan with these extra variables, and end the verb with its exit code."""
        report = run_and_report(self.cluster, self.plan, replace(self.options, extra_vars=extra_vars), as_json=self.as_json)
        if self.as_json:
            emit_json(report.to_json())
        raise typer.Exit(report.exit_code)


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    backup_app.command("etcd")(backup_etcd)
    backup_app.callback()(_family)
    restore_app.command("etcd")(restore_etcd)
    restore_app.callback()(_family)
    renew_app.command("certificates")(renew_certificates)
    renew_app.callback()(_family)
    app.add_typer(backup_app, name="backup")
    app.add_typer(restore_app, name="restore")
    app.add_typer(renew_app, name="renew")
    upgrade_app.command("kubernetes")(upgrade_kubernetes)
    upgrade_app.callback()(_family)
    app.add_typer(upgrade_app, name="upgrade")


def _family() -> None:
    """Keep the group: typer drops the name of a command that is alone in its group."""


def backup_etcd(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    no_copy: NoCopy = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Back up etcd, the PKI and the encryption key of Kubernetes' secrets, verified, on a host and on this machine.

    Changes nothing in the cluster, so it does not ask for confirmation. Keep the backup secret: it contains all keys of the cluster.
    """
    options = run_options("backup etcd", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    prepared = _prepare(hosts, "day2/backup_etcd.yml", options, as_json=as_json)
    prepared.start(("kube_backup_fetch=false",) if no_copy else ())


def restore_etcd(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    source: From = "",
    despite_keys: DespiteKeys = False,
    confirm: Confirmed = "",
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Restore etcd from a backup on every member. Pods continue to run; the API is unavailable during the restore.

    The current data are moved aside on each member. Safe to repeat, also after an interruption.
    """
    options = run_options("restore etcd", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    prepared = _prepare(hosts, "day2/restore_etcd.yml", options, as_json=as_json)
    if not confirm and not as_json:
        print_plan(prepared.cluster, prepared.plan, verb=options.verb)
    what = "This restores the cluster to the backup; later changes are moved aside."
    ask_name(prepared.cluster, confirm, verb="restore etcd", what=what)
    extra = (f"confirm={prepared.cluster.name}", *((f"kube_backup_restore_from={source}",) if source else ()))
    prepared.start((*extra, *(("kube_backup_restore_ignore_identity=true",) if despite_keys else ())))


def renew_certificates(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    now: Now = False,
    yes: Yes = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Renew certificates of Kubernetes that expire soon, one control plane at a time, and show the remaining days of all.

    Other certificates stay, and their pods are not restarted. Safe to repeat, also after an interruption.
    """
    options = run_options("renew certificates", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    prepared = _prepare(hosts, "day2/renew_certificates.yml", options, as_json=as_json)
    if not yes and not as_json:
        print_plan(prepared.cluster, prepared.plan, verb=options.verb)
        ask_yes("Renew the certificates that expire soon? Their pods are restarted, one at a time.", verb="renew certificates")
    prepared.start(("kube_certificates_renew_now=true",) if now else ())


def upgrade_kubernetes(
    words: Version,
    *,
    batch: Batch = 0,
    yes: Yes = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Upgrade Kubernetes: control planes one at a time, then workers rack by rack, each drained first.

    First set kube_version in hosts.yaml to VERSION. Pods of a drained worker end; jobs that restart continue on other workers. Safe to
    repeat, also after an interruption: upgraded hosts are skipped.
    """
    path, (version,) = split_words(words, ["VERSION"])
    options = run_options("upgrade kubernetes", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    prepared = _prepare(path, "day2/upgrade_kubernetes.yml", options, as_json=as_json)
    check_upgrade_step(prepared.cluster, version)
    if not yes and not as_json:
        print_plan(prepared.cluster, prepared.plan, verb=options.verb)
        ask_yes(f"Upgrade {prepared.cluster.name} to Kubernetes {version}? Workers are drained.", verb="upgrade kubernetes")
    prepared.start((f"version={version}", *((f"kube_upgrade_batch_size={batch}",) if batch else ())))


def _prepare(hosts: HostsFile, playbook: str, options: Options, *, as_json: bool) -> PreparedRun:
    """Load the cluster and make the plan; fail for a cluster that another tool manages."""
    cluster = load_for_run(hosts, options)
    refuse_foreign(cluster, options.verb)
    return PreparedRun(cluster, make_plan(cluster, playbook=playbook), options, as_json)
