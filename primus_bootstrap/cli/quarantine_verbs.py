"""The verbs `node list`, `node quarantine` and `node release`."""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.cluster_loading import open_cluster
from primus_bootstrap.cli.console import clock_text, coloured, emit, emit_json, emit_table, plain_table, say
from primus_bootstrap.cli.day2 import ask_name, find_host, run_and_report, split_words
from primus_bootstrap.cli.fleet_verbs import as_root, ask_hosts, targets_of_limit
from primus_bootstrap.cli.options import (
    DEFAULT_HOSTS,
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Confirmed,
    Forks,
    HostsFile,
    Limit,
    Timeout,
    VaultPasswordFile,
    Words,
    examples,
)
from primus_bootstrap.cli.run_verbs import load_for_run, run_options
from primus_bootstrap.cli.service_states import read_all_states
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.engine.plan import TargetHost, make_plan
from primus_bootstrap.engine.ssh import known_hosts_path
from primus_bootstrap.fleet.messages import Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.fleet.service import Service
    from primus_bootstrap.inventory.cluster import Cluster

QUARANTINE, RELEASE = "day2/quarantine_node.yml", "day2/release_node.yml"
# The same pattern as in roles/quarantine/filter_plugins: one line without characters of Ansible templates.
_REASON = re.compile(r"[^\n\r{}\"'|\\]{3,160}\Z")

Reason = Annotated[str, typer.Option("--reason", help="Why, in one line; `node list` and `sinfo -R` show it.", metavar="TEXT")]
Owner = Annotated[str, typer.Option("--owner", help="Owner of the quarantine; your login name by default.", metavar="NAME")]
Force = Annotated[bool, typer.Option("--force", help="Requeue its jobs and evict its pods at once; otherwise they run to their end.")]
Wait = Annotated[
    int | None,
    typer.Option("--wait", min=1, help="Run its health checks now, and wait at most this long for them.", metavar="SECONDS"),
]
WithoutProof = Annotated[
    bool, typer.Option("--without-proof", help="Release a host without a health record: one outside gpu_node has no health checks.")
]


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("list", epilog=examples("node list", "node list --limit gpu_node --json"))(list_)
    app.command("quarantine", epilog=examples("node quarantine gpu7 --reason 'ECC errors on GPU 3'"))(quarantine)
    app.command("release", epilog=examples("node release gpu7", "node release gpu7 --wait 120"))(release)


def quarantine(
    words: Words,
    *,
    reason: Reason,
    owner: Owner = "",
    force: Force = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Take a host out of service until it is released: no new job starts on it, and running jobs continue. Safe to repeat.

    The record is stored on the host, on Slurm's controllers and on the Kubernetes Node. It therefore also works for a dead host,
    and survives a reinstallation.
    """
    if not _REASON.match(reason):
        fix = "use one line of 3 to 160 characters, without quotes, braces, vertical bars and backslashes"
        raise UsageError(f"--reason {reason!r} is not allowed", fix=fix)
    options = run_options("node quarantine", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster, name = _load_host(words, options)
    values = {"quarantine_reason": reason, "quarantine_owner": owner or login_name(), "quarantine_requeue": str(force).lower()}
    report = _run(cluster, name, QUARANTINE, options, values, as_json=as_json)
    if not as_json and not report.exit_code:
        emit(f"{name} is quarantined" if report.changed else f"nothing to do: {name} is already quarantined for this reason")
    raise typer.Exit(report.exit_code)


def release(
    words: Words,
    *,
    owner: Owner = "",
    wait_s: Wait = None,
    without_proof: WithoutProof = False,
    confirm: Confirmed = "",
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Return a host to service if its health checks passed after its quarantine. Safe to repeat.

    The health record must be newer than the quarantine; --wait runs the checks first. A quarantine of another owner and an
    administrator's own drain stay.
    """
    options = run_options("node release", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster, name = _load_host(words, options)
    if without_proof:
        ask_name(cluster, confirm, verb="node release", what=f"This returns {name} to service without a health record.")
    if wait_s is not None:
        _run_checks(cluster, name, options, wait_s)
    values = {"quarantine_owner": owner or login_name(), "quarantine_without_proof": str(without_proof).lower()}
    report = _run(cluster, name, RELEASE, options, values, as_json=as_json)
    if not as_json and not report.exit_code:
        emit(f"{name} is released" if report.changed else f"nothing to do: {name} is not quarantined")
    raise typer.Exit(report.exit_code)


def list_(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    limit: Limit = None,
    timeout_s: Timeout = 15.0,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show for every host: quarantine, owner and reason, state in Slurm and Kubernetes, health. Changes nothing.

    A host that does not answer is `unknown`. Its quarantine is then read from Slurm's controllers and Kubernetes.
    """
    cluster = open_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    listed = [target.host for target in targets_of_limit(cluster, limit or "all")]
    services = [service for _, service in read_all_states(cluster, listed, timeout_s=timeout_s)]
    if as_json:
        emit_json({"schema": "primus.service/1", "cluster": cluster.name, "hosts": [asdict(service) for service in services]})
    else:
        _print(services)


def _run_checks(cluster: Cluster, name: str, options: Options, wait_s: int) -> None:
    """Run the health checks of a host now, and report a failure; the release itself then reads their record."""
    targets = targets_of_limit(cluster, name, options.become_password)
    stdin = {name: f"{options.become_password}\n"} if options.become_password else {}
    say(f"running the health checks of {name}, for at most {wait_s} s")
    task = Task(as_root("systemctl start primus-health"), stdin, float(wait_s), str(known_hosts_path(cluster)))
    (answer,) = ask_hosts(cluster, targets, task)
    if answer.exit_code != 0:
        say(f"running them failed: {answer.detail or answer.stderr.strip() or f'exit code {answer.exit_code}'}")


def login_name() -> str:
    """Return the login name of the user, also behind sudo: root as the owner would not tell two people apart."""
    return os.environ.get("SUDO_USER") or getpass.getuser()


def _load_host(words: list[str], options: Options) -> tuple[Cluster, str]:
    path, (name,) = split_words(words, ["NAME"])
    cluster = load_for_run(path, options)
    return cluster, find_host(cluster, name)


def _run(cluster: Cluster, name: str, playbook: str, options: Options, values: dict[str, str], *, as_json: bool) -> Report:
    plan = make_plan(cluster, playbook=playbook, target=TargetHost(name))
    extra = (f"node={name}", *(f"{key}={value}" for key, value in values.items()))
    report = run_and_report(cluster, plan, replace(options, extra_vars=extra, chained=True), as_json=as_json)
    if as_json:
        emit_json(report.to_json())
    return report


def _print(services: Iterable[Service]) -> None:
    services = list(services)
    nodes = any(service.kubernetes for service in services)
    table = plain_table("host", "service", "owner", "since", "reason", "slurm", *(("kubernetes",) if nodes else ()), "health")
    for service in services:
        record = service.quarantine
        state = "quarantined" if record else "in service" if service.answered else "unknown"
        details = (record.owner, clock_text(record.since), record.reason) if record else ("", "", "")
        in_slurm = f"{service.slurm}: {service.slurm_reason}" if service.slurm_reason and not record else service.slurm
        health = coloured(service.health or "no checks")
        if service.health_reason:
            health.append(f": {service.health_reason}", style="none")
        in_kubernetes = f"{service.kubernetes}: {service.kubernetes_reason}" if service.kubernetes_reason else service.kubernetes
        table.add_row(service.host, state, *details, in_slurm, *((in_kubernetes,) if nodes else ()), health)
    emit_table(table)
