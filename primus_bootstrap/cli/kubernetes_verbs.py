"""`backup`, `restore`, `renew`, `upgrade`: day 2 of a Kubernetes cluster whose machines are ours."""

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
from primus_bootstrap.cli.run_verbs import given_options, print_plan
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.day2 import refuse_step
from primus_bootstrap.kubernetes.preflight import refuse_foreign

if TYPE_CHECKING:
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

backup_app = typer.Typer(no_args_is_help=True, help="Back up what the cluster cannot be made again without.")
restore_app = typer.Typer(no_args_is_help=True, help="Put a backup in place of the data.")
renew_app = typer.Typer(no_args_is_help=True, help="Renew what runs out.")
upgrade_app = typer.Typer(no_args_is_help=True, help="Bring the cluster to another version.")

From = Annotated[
    str, typer.Option("--from", help="The backup: its name on the controller, or a folder. The newest without it.", metavar="NAME")
]
DespiteKeys = Annotated[bool, typer.Option("--despite-keys", help="Although keys or authorities have changed since the backup.")]
NoCopy = Annotated[bool, typer.Option("--no-copy", help="Leave it on the hosts; copy nothing to the controller.")]
Version = Annotated[
    list[str], typer.Argument(metavar="[HOSTS.YAML] VERSION", show_default=False, help="The cluster's hosts.yaml and the version.")
]
Batch = Annotated[int, typer.Option("--batch", min=0, help="Workers of a rack that go together at most; 0 is the whole rack.", metavar="N")]
Now = Annotated[bool, typer.Option("--now", help="Everything, whatever time it has left.")]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb that is about to run: what was loaded, what would be done, and how."""

    cluster: Cluster
    plan: Plan
    options: Options
    as_json: bool

    def go(self, words: tuple[str, ...]) -> None:
        """Run it with these extra variables, and end with its exit code."""
        report = run_and_report(self.cluster, self.plan, replace(self.options, extra_vars=words), as_json=self.as_json)
        if self.as_json:
            emit_json(report.to_json())
        raise typer.Exit(report.exit_code)


def register(app: typer.Typer) -> None:
    """Mount the verbs."""
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
    """Keep the noun: a family of one verb would lose it."""


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
    """Save etcd's data, the PKI and the key of secrets at rest, checked, on a host and on this machine.

    Changes nothing of the cluster, so it does not ask. What it writes is as secret as the cluster itself.
    """
    options = given_options("backup etcd", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    verb = _made(hosts, "day2/backup_etcd.yml", options, as_json=as_json)
    verb.go(("kube_backup_fetch=false",) if no_copy else ())


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
    """Put a backup in place of etcd's data on every member; pods go on, the API is away meanwhile.

    What was written after the backup is set aside on each member. Safe to repeat, and to kill and repeat.
    """
    options = given_options("restore etcd", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    verb = _made(hosts, "day2/restore_etcd.yml", options, as_json=as_json)
    if not confirm and not as_json:
        print_plan(verb.cluster, verb.plan)
    ask_name(verb.cluster, confirm, verb="restore etcd", what="The cluster goes back to the backup; what came later is set aside.")
    words = (f"confirm={verb.cluster.name}", *((f"kube_backup_restore_from={source}",) if source else ()))
    verb.go((*words, *(("kube_backup_restore_despite_identity=true",) if despite_keys else ())))


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
    """Renew Kubernetes' certificates that run out, one control plane after the other, and show the days of all of them.

    What has time enough is left alone, and nothing starts anew for it. Safe to repeat, and to kill and repeat.
    """
    options = given_options("renew certificates", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    verb = _made(hosts, "day2/renew_certificates.yml", options, as_json=as_json)
    if not yes and not as_json:
        print_plan(verb.cluster, verb.plan)
        ask_yes("Renew what runs out? Its pods start anew, one at a time.", verb="renew certificates")
    verb.go(("kube_certificates_renew_now=true",) if now else ())


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
    """Bring Kubernetes to the version that hosts.yaml states: control planes one by one, then workers rack by rack, each drained.

    Set kube_version in hosts.yaml first. Pods of a worker end when it is drained; jobs that restart go on elsewhere. Safe to repeat, and to
    kill and repeat: what is there already is left out.
    """
    path, (version,) = split_words(words, ["VERSION"])
    options = given_options("upgrade kubernetes", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    verb = _made(path, "day2/upgrade_kubernetes.yml", options, as_json=as_json)
    refuse_step(verb.cluster, version)
    if not yes and not as_json:
        print_plan(verb.cluster, verb.plan)
        ask_yes(f"Bring {verb.cluster.name} to Kubernetes {version}? Workers are drained.", verb="upgrade kubernetes")
    verb.go((f"version={version}", *((f"kube_upgrade_batch={batch}",) if batch else ())))


def _made(hosts: HostsFile, playbook: str, options: Options, *, as_json: bool) -> Verb:
    """Load the cluster and make the plan; a cluster that somebody else makes is refused."""
    cluster = load_cluster(hosts, vault_password_file=options.vault_password_file, ask_vault_pass=options.vault_password or None)
    refuse_foreign(cluster, options.verb)
    return Verb(cluster, make_plan(cluster, playbook=playbook), options, as_json)
