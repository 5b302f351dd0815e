"""`node quarantine`, `node release`, `node list`: hosts out of service, by whom and why, and back with a proof."""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import coloured, emit, emit_json, emit_table, plain_table
from primus_bootstrap.cli.day2 import ask_name, run_and_report, split_words
from primus_bootstrap.cli.fleet_verbs import ask_hosts, targets_of_limit
from primus_bootstrap.cli.node_changes import host_named
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
    ask_password,
)
from primus_bootstrap.cli.report_view import clock_text
from primus_bootstrap.cli.run_verbs import given_options
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.hostkeys import known_hosts_path
from primus_bootstrap.engine.plan import TargetHost, make_plan
from primus_bootstrap.fleet.service import read_quarantine, read_services, service_task
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.fleet.service import Service
    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.kubernetes.node_states import NodeState

QUARANTINE, RELEASE = "day2/quarantine_node.yml", "day2/release_node.yml"
# The same as in roles/quarantine/filter_plugins: one line that Slurm shows, and that Ansible takes for no template.
_REASON = re.compile(r"[^\n\r{}\"'|\\]{3,160}\Z")

Reason = Annotated[str, typer.Option("--reason", help="Why, in one line; `node list` and `sinfo -R` show it.", metavar="TEXT")]
Owner = Annotated[str, typer.Option("--owner", help="Whose quarantine it is; you, unless another is given.", metavar="NAME")]
Force = Annotated[
    bool, typer.Option("--force", help="Have its jobs queued again and its pods evicted at once; otherwise they go on to their end.")
]
WithoutProof = Annotated[
    bool, typer.Option("--without-proof", help="You vouch that it is well: for hosts outside gpu_node, which have no health checks.")
]


def register(app: typer.Typer) -> None:
    """Mount the verbs."""
    app.command("quarantine")(quarantine)
    app.command("release")(release)
    app.command("list")(list_)


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
    """Take a host out of service until it is released: no job starts there, and those that run go on. Safe to repeat.

    The record is kept on the host, on Slurm's controllers and on the Node, so that it also works for a host that is dead,
    and stands when it is installed anew.
    """
    if not _REASON.match(reason):
        raise PlanError(f"--reason {reason!r}", fix="one line of 3 to 160 characters without quotes, braces, bars and backslashes")
    options = given_options("node quarantine", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster, name = _named(words, options)
    values = {"quarantine_reason": reason, "quarantine_owner": owner or login_name(), "quarantine_requeue": str(force).lower()}
    report = _run(cluster, name, QUARANTINE, options, values, as_json=as_json)
    if not as_json and not report.exit_code:
        emit(f"{name} is quarantined" if report.changed else f"nothing to do: {name} is quarantined for this reason already")
    raise typer.Exit(report.exit_code)


def release(
    words: Words,
    *,
    owner: Owner = "",
    without_proof: WithoutProof = False,
    confirm: Confirmed = "",
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Put a host back into service, with a passing health record that is newer than its quarantine. Safe to repeat.

    A record that is stale, older or missing is no proof; another owner's quarantine and an administrator's own drain stay.
    """
    options = given_options("node release", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster, name = _named(words, options)
    if without_proof:
        ask_name(cluster, confirm, verb="node release", what=f"{name} goes back into service without a proof that it is well.")
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
    """Show every host's service: quarantined by whom, since when and why, what Slurm and Kubernetes say, how healthy. Changes nothing.

    A host that does not answer is unknown; of its quarantine the controllers and the Node still know.
    """
    vault = ask_password("Vault password", wanted=ask_vault_pass)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=vault)
    shown = [target.host for target in targets_of_limit(cluster, limit or "all")]
    asked = dict.fromkeys([*shown, *cluster.groups.get("slurm_controller", ())])
    targets = targets_of_limit(cluster, ",".join(asked))
    answers = ask_hosts(cluster, targets, service_task(targets, known_hosts=known_hosts_path(cluster), timeout_s=timeout_s))
    found = _with_nodes(cluster, read_services(answers, shown))
    if as_json:
        emit_json({"schema": "primus.service/1", "cluster": cluster.name, "hosts": [one.to_json() for one in found]})
    else:
        _print(found)


def login_name() -> str:
    """Return who a person logged in as, also behind sudo: as root, everybody would own everybody's quarantines."""
    return os.environ.get("SUDO_USER") or getpass.getuser()


def _named(words: list[str], options: Options) -> tuple[Cluster, str]:
    path, (name,) = split_words(words, ["NAME"])
    cluster = _load(path, options)
    return cluster, host_named(cluster, name)


def _load(path: Path, options: Options) -> Cluster:
    return load_cluster(path, vault_password_file=options.vault_password_file, ask_vault_pass=options.vault_password or None)


def _run(cluster: Cluster, name: str, playbook: str, options: Options, values: dict[str, str], *, as_json: bool) -> Report:
    made = make_plan(cluster, playbook=playbook, subject=TargetHost(name))
    extra = (f"node={name}", *(f"{key}={value}" for key, value in values.items()))
    report = run_and_report(cluster, made, replace(options, extra_vars=extra, chained=True), as_json=as_json)
    if as_json:
        emit_json(report.to_json())
    return report


def _with_nodes(cluster: Cluster, found: Sequence[Service]) -> tuple[Service, ...]:
    """Add what Kubernetes says, where hosts are its Nodes; a record on the Node counts where the host itself is silent."""
    if not any(cluster.groups.get(group) for group in ("kube_control_plane", "kube_node")):
        return tuple(found)
    from primus_bootstrap.kubernetes.node_states import ask_states  # noqa: PLC0415 - its client takes a second to load

    states = ask_states(cluster, [one.host for one in found])
    return tuple(_with_node(one, states[one.host]) if one.host in states else one for one in found)


def _with_node(one: Service, node: NodeState) -> Service:
    kept = one.quarantine or (read_quarantine(node.quarantine) if node.quarantine else None)
    return replace(one, quarantine=kept, kubernetes=node.state, kubernetes_reason=node.reason)


def _print(found: Iterable[Service]) -> None:
    found = list(found)
    nodes = any(one.kubernetes for one in found)
    table = plain_table("host", "service", "by", "since", "reason", "slurm", *(("kubernetes",) if nodes else ()), "health")
    for one in found:
        kept = one.quarantine
        service = "quarantined" if kept else "in service" if one.answered else "unknown"
        who = (kept.owner, clock_text(kept.since), kept.reason) if kept else ("", "", "")
        in_slurm = f"{one.slurm}: {one.slurm_reason}" if one.slurm_reason and not kept else one.slurm
        health = coloured(one.health or "no checks")
        if one.health_reason:
            health.append(f": {one.health_reason}", style="none")
        in_kubernetes = f"{one.kubernetes}: {one.kubernetes_reason}" if one.kubernetes_reason else one.kubernetes
        table.add_row(one.host, service, *who, in_slurm, *((in_kubernetes,) if nodes else ()), health)
    emit_table(table)
