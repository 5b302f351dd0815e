"""`node add`, `node remove`, `node replace`: one host of a running cluster, and hosts.yaml with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from primus_bootstrap.cli.console import say
from primus_bootstrap.cli.day2 import ask_name, ask_yes, locked, split_words
from primus_bootstrap.cli.node_changes import (
    ADD,
    REMOVE,
    REPLACE,
    Change,
    accept_key,
    added,
    carry_out,
    check_answers,
    exit_code,
    groups_of,
    host_named,
    judge,
    leaving_variables,
    load,
    replaced,
    say_gone,
)
from primus_bootstrap.cli.options import (  # noqa: TC001 - typer reads them
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Confirmed,
    Forks,
    OldAndNew,
    VaultPasswordFile,
    Words,
    Yes,
)
from primus_bootstrap.cli.run_verbs import given_options
from primus_bootstrap.engine.plan import TargetHost
from primus_bootstrap.inventory.edit.draft import read_hosts_text
from primus_bootstrap.inventory.edit.host_edits import without_host
from primus_bootstrap.inventory.rules.day2_nodes import check_leaving, check_reinstalled
from primus_bootstrap.kubernetes.day2 import refuse_foreign_machine

Address = Annotated[str, typer.Option("--host", help="Its address: what becomes ansible_host.", metavar="ADDRESS")]
Groups = Annotated[list[str] | None, typer.Option("--groups", "-g", help="Groups, with commas between; may be given several times.")]
Like = Annotated[str, typer.Option("--like", help="The groups of another host.", metavar="HOST")]
Variables = Annotated[list[str] | None, typer.Option("--var", help="A variable of this host, in YAML.", metavar="KEY=VALUE")]
Force = Annotated[bool, typer.Option("--force", help="Do not wait for its jobs: Slurm runs them again elsewhere.")]
Wait = Annotated[int | None, typer.Option("--wait", min=0, help="Seconds that its jobs may take to end.", metavar="SECONDS")]
Dead = Annotated[bool, typer.Option("--dead", help="It does not answer and will not: nothing is stopped on it, its jobs run elsewhere.")]
HostKey = Annotated[str, typer.Option("--host-key", help="The new public host key, of a host that was reinstalled.", metavar="KEY")]


def register(app: typer.Typer) -> None:
    """Mount the verbs."""
    app.command("add")(add)
    app.command("remove")(remove)
    app.command("replace")(replace_)


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
    """Write a new host into hosts.yaml and bring it into the cluster; of the others only Slurm's controllers are told.

    The edited file is checked as a whole before it is written. Safe to repeat: where the run failed, the same command
    goes on.
    """
    path, (name,) = split_words(words, ["NAME"])
    options = given_options(f"node add {name}", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    with locked(path, options) as lock:
        change = added(path, name, options, address=host, groups=groups or (), like=like, variables=variables or ())
        refuse_foreign_machine(change.cluster, groups_of(change.cluster, name), "node add")
        ask = None if yes else lambda: ask_yes(f"Add {name}?", verb="node add")
        report = carry_out(change, ADD, ask, lock=lock, as_json=as_json)
    if exit_code(report):
        say(f"{name} stays in hosts.yaml: the same command again goes on from there")
    elif report and not change.before and not report.changed:
        say(f"nothing to do: {name} is in hosts.yaml and in the cluster already")
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
    """Let a host's jobs end, stop its services, make the cluster forget it, and take it out of hosts.yaml.

    hosts.yaml is edited last, so that the same command goes on where it was stopped. A host that others depend on is
    refused, with what to do first.
    """
    path, (name,) = split_words(words, ["NAME"])
    options = given_options(f"node remove {name}", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    with locked(path, options) as lock:
        cluster = load(path, options)
        if name not in cluster.groups["all"]:
            say_gone(cluster, name, options.verb, as_json=as_json)
            return
        check_leaving(cluster, name)
        refuse_foreign_machine(cluster, groups_of(cluster, name), "node remove")
        file = read_hosts_text(cluster.path)
        after = judge(file, without_host(file.text, name), options, removes=True)
        extra = (f"node={name}", *leaving_variables(cluster, wait_s, force=force or dead, dead=dead))
        change = Change(cluster, TargetHost(name), replace(options, extra_vars=extra), after=after, dead=dead)

        def ask() -> None:
            ask_name(cluster, confirm, verb="node remove", what=f"{name} leaves the cluster.")
            check_answers(cluster, name, dead=dead)

        raise typer.Exit(exit_code(carry_out(change, REMOVE, ask, lock=lock, as_json=as_json)))


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
    """Bring a new host into the cluster with an old one's groups and variables, then take the old one out.

    The same name twice means that the machine was reinstalled: its new host key is accepted only where --host-key
    gives it, or where you confirm the fingerprint that is shown.
    """
    path, (old, new) = split_words(words, ["OLD", "NEW"])
    options = given_options(f"node replace {old} {new}", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    with locked(path, options) as lock:
        cluster = load(path, options)
        if old == new:
            check_reinstalled(cluster, host_named(cluster, old))
            refuse_foreign_machine(cluster, groups_of(cluster, old), "node replace")
            change = accept_key(cluster, old, replace(options, extra_vars=(f"node={old}",)), address=host, given=host_key)
            raise typer.Exit(exit_code(carry_out(change, ADD, None, lock=lock, as_json=as_json)))
        if old not in cluster.groups["all"] and new in cluster.groups["all"]:
            say_gone(cluster, old, options.verb, as_json=as_json)
            return
        check_leaving(cluster, host_named(cluster, old))
        refuse_foreign_machine(cluster, groups_of(cluster, old), "node replace")
        successor = None if new in cluster.groups["all"] else (host, variables or ())
        change = replaced(cluster, old, new, options, successor=successor)
        extra = (f"node={new}", f"old={old}", *leaving_variables(cluster, wait_s, force=force or dead, dead=dead))
        change = replace(change, options=replace(options, extra_vars=extra), dead=dead)

        def ask() -> None:
            ask_name(cluster, confirm, verb="node replace", what=f"{new} takes the place of {old}, which leaves the cluster.")
            check_answers(cluster, old, dead=dead)

        raise typer.Exit(exit_code(carry_out(change, REPLACE, ask, lock=lock, as_json=as_json)))
