"""The verbs `node add`, `node remove` and `node replace`, which also edit hosts.yaml."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from primus_bootstrap.cli.console import say
from primus_bootstrap.cli.day2 import ask_name, ask_yes, find_host, locked, split_words
from primus_bootstrap.cli.node_changes import (
    ADD,
    REMOVE,
    REPLACE,
    Change,
    accept_key,
    check_answers,
    check_edit,
    exit_code,
    groups_of,
    load,
    make_addition,
    make_replacement,
    removal_variables,
    report_already_removed,
    run_change,
)
from primus_bootstrap.cli.options import (
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Confirmed,
    Forks,
    OldAndNew,
    VaultPasswordFile,
    Words,
    Yes,
    examples,
)
from primus_bootstrap.cli.run_verbs import run_options
from primus_bootstrap.engine.plan import TargetHost
from primus_bootstrap.inventory.edit.draft import read_hosts_text
from primus_bootstrap.inventory.edit.host_edits import without_host
from primus_bootstrap.inventory.rules.day2_nodes import check_leaving, check_reinstalled
from primus_bootstrap.kubernetes.day2 import refuse_foreign_machine

Address = Annotated[str, typer.Option("--host", help="Address of the new host (ansible_host).", metavar="ADDRESS")]
Groups = Annotated[list[str] | None, typer.Option("--groups", "-g", help="Groups of the new host, separated by commas.", metavar="GROUPS")]
Like = Annotated[str, typer.Option("--like", help="Use the groups of this host.", metavar="HOST")]
Variables = Annotated[
    list[str] | None, typer.Option("--var", help="A variable of the new host; the value is YAML; repeat for more.", metavar="KEY=VALUE")
]
Force = Annotated[bool, typer.Option("--force", help="Do not wait for running jobs; Slurm runs them again on other hosts.")]
Wait = Annotated[int | None, typer.Option("--wait", min=0, help="Seconds to wait for running jobs.", metavar="SECONDS")]
Dead = Annotated[bool, typer.Option("--dead", help="The host will not come back: stop nothing on it; its jobs run again on other hosts.")]
HostKey = Annotated[str, typer.Option("--host-key", help="The new public host key of a reinstalled host.", metavar="KEY")]


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("add", epilog=examples("node add gpu9 --host 10.0.0.19 --like gpu8"))(add)
    app.command("remove", epilog=examples("node remove gpu9", "node remove gpu9 --dead --confirm prod"))(remove)
    app.command("replace", epilog=examples("node replace gpu9 gpu10 --host 10.0.0.20", "node replace gpu9 gpu9"))(replace_)


def add(
    words: Words,
    *,
    host: Address = "",
    groups: Groups = None,
    like: Like = "",
    variables: Variables = None,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Add a new host to hosts.yaml and to the cluster. Of the other hosts, only Slurm's controllers change.

    The edited hosts.yaml is checked as a whole before it is written. If the run fails, run the same command again to continue.
    """
    path, (name,) = split_words(words, ["NAME"])
    options = run_options(f"node add {name}", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    with locked(path, options) as lock:
        change = make_addition(path, name, options, address=host, groups=groups or (), like=like, variables=variables or ())
        refuse_foreign_machine(change.cluster, groups_of(change.cluster, name), "node add")
        ask = None if yes else lambda: ask_yes(f"Add {name}?", verb="node add")
        report = run_change(change, ADD, ask, lock=lock, as_json=as_json)
    if exit_code(report):
        say(f"{name} stays in hosts.yaml; to continue, run the same command again")
    elif report and not change.before and not report.changed:
        say(f"nothing to do: {name} is already in hosts.yaml and in the cluster")
    raise typer.Exit(exit_code(report))


def remove(
    words: Words,
    *,
    confirm: Confirmed = "",
    wait_s: Wait = None,
    force: Force = False,
    dead: Dead = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Drain a host, stop its services, and remove it from the cluster and from hosts.yaml.

    hosts.yaml is edited last, so after a failure the same command continues. If other hosts depend on the host, the command
    fails and says what to do first.
    """
    path, (name,) = split_words(words, ["NAME"])
    options = run_options(f"node remove {name}", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    with locked(path, options) as lock:
        cluster = load(path, options)
        if name not in cluster.groups["all"]:
            report_already_removed(cluster, name, options.verb, as_json=as_json)
            return
        check_leaving(cluster, name)
        refuse_foreign_machine(cluster, groups_of(cluster, name), "node remove")
        file = read_hosts_text(cluster.path)
        after = check_edit(file, without_host(file.text, name), options, removes=True)
        extra = (f"node={name}", *removal_variables(cluster, wait_s, force=force or dead, dead=dead))
        change = Change(cluster, TargetHost(name), replace(options, extra_vars=extra), after=after, dead=dead)

        def ask() -> None:
            ask_name(cluster, confirm, verb="node remove", what=f"This removes {name} from the cluster.")
            check_answers(cluster, name, dead=dead)

        raise typer.Exit(exit_code(run_change(change, REMOVE, ask, lock=lock, as_json=as_json)))


def replace_(
    words: OldAndNew,
    *,
    host: Address = "",
    host_key: HostKey = "",
    variables: Variables = None,
    confirm: Confirmed = "",
    wait_s: Wait = None,
    force: Force = False,
    dead: Dead = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Add a new host with the groups and variables of an old one, then remove the old one.

    Use the same name twice for a reinstalled machine. Its new host key must match --host-key, or you confirm its fingerprint.
    """
    path, (old, new) = split_words(words, ["OLD", "NEW"])
    options = run_options(f"node replace {old} {new}", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    with locked(path, options) as lock:
        cluster = load(path, options)
        if old == new:
            check_reinstalled(cluster, find_host(cluster, old))
            refuse_foreign_machine(cluster, groups_of(cluster, old), "node replace")
            change = accept_key(cluster, old, replace(options, extra_vars=(f"node={old}",)), address=host, expected=host_key)
            raise typer.Exit(exit_code(run_change(change, ADD, None, lock=lock, as_json=as_json)))
        if old not in cluster.groups["all"] and new in cluster.groups["all"]:
            report_already_removed(cluster, old, options.verb, as_json=as_json)
            return
        successor = None if new in cluster.groups["all"] else (host, variables or ())
        check_leaving(cluster, find_host(cluster, old), joining=0 if successor is None else 1)
        refuse_foreign_machine(cluster, groups_of(cluster, old), "node replace")
        change = make_replacement(cluster, old, new, options, successor=successor)
        extra = (f"node={new}", f"old={old}", *removal_variables(cluster, wait_s, force=force or dead, dead=dead))
        change = replace(change, options=replace(options, extra_vars=extra), dead=dead)

        def ask() -> None:
            ask_name(cluster, confirm, verb="node replace", what=f"This adds {new} and removes {old} from the cluster.")
            check_answers(cluster, old, dead=dead)

        raise typer.Exit(exit_code(run_change(change, REPLACE, ask, lock=lock, as_json=as_json)))
