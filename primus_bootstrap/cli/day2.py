"""Code that the day-2 verbs share: arguments, confirmations, the lock, and a run with its report."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primus_bootstrap.cli.console import emit
from primus_bootstrap.cli.options import DEFAULT_HOSTS, is_inventory
from primus_bootstrap.cli.report_view import next_steps, print_report
from primus_bootstrap.cli.run_verbs import need_terminal, run_plan
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.state_folder import new_run_id
from primus_bootstrap.inventory.load import find_state_dir

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from primus_bootstrap.engine.lock import HeldLock
    from primus_bootstrap.engine.plan import TargetHost
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

_SHOWN_HOSTS = 10
node_app = typer.Typer(no_args_is_help=True, help="Add, remove, replace, quarantine or release a host of a running cluster.")


def split_words(words: Sequence[str], names: Sequence[str]) -> tuple[Path, list[str]]:
    """Split `[hosts.yaml] NAME...` into the path, which is optional, and the names.

    Raises:
        UsageError: There are too many or too few words.
    """
    if len(words) == len(names) and (is_inventory(words[0]) or (names != ["JOB"] and _is_yaml_file(words[0]))):
        raise UsageError(f"{words[0]} is the inventory, and {names[-1]} is missing", fix=f"pass [hosts.yaml] {' '.join(names)}")
    if len(words) == len(names):
        return DEFAULT_HOSTS, list(words)
    if len(words) == len(names) + 1:
        return Path(words[0]), list(words[1:])
    raise UsageError(f"got {len(words)} arguments: {' '.join(words)}", fix=f"pass [hosts.yaml] {' '.join(names)}")


def _is_yaml_file(word: str) -> bool:
    """Return whether a word is the path of a YAML file: an inventory with another name, or a job."""
    path = Path(word)
    return path.suffix in (".yaml", ".yml", ".json") and path.is_file()


def make_node_plan(cluster: Cluster, playbook: str, target: TargetHost, *, without: Sequence[str] = ()) -> Plan | None:
    """Return the plan of a day-2 playbook except the phases in `without`; None if no host has work."""
    try:
        plan = make_plan(cluster, playbook=playbook, target=target)
    except PlanError:
        return None
    steps = tuple(step for step in plan.steps if step.phase not in without)
    return replace(plan, steps=steps) if steps else None


def find_host(cluster: Cluster, name: str) -> str:
    """Return the name if hosts.yaml has such a host.

    Raises:
        UsageError: hosts.yaml has no such host.
    """
    return find_name(name, cluster.groups["all"])


def find_name(name: str, hosts: Collection[str]) -> str:
    """Return the name if it is one of the hosts.

    Raises:
        UsageError: There is no such host.
    """
    if name not in hosts:
        near = nearest(name, hosts)
        shown = ", ".join([*sorted(hosts)[:_SHOWN_HOSTS], *(["…"] if len(hosts) > _SHOWN_HOSTS else [])])
        raise UsageError(f"hosts.yaml has no host {name}", fix=f"did you mean {near}? " * bool(near) + f"choose from: {shown}")
    return name


def ask_yes(question: str, *, verb: str) -> None:
    """Ask for confirmation; end the verb on a no."""
    need_terminal(verb, fix="add --yes")
    typer.confirm(question, abort=True, err=True)


def ask_name(cluster: Cluster, name: str, *, verb: str, what: str) -> None:
    """Require the cluster's name, from `--confirm` or from the terminal.

    Raises:
        UsageError: It is another name.
        PlanError: It is missing, and there is no terminal.
    """
    if not name:
        need_terminal(verb, fix=f"add --confirm {cluster.name}")
        name = typer.prompt(f"{what} Type the cluster's name to continue", err=True)
    if name != cluster.name:
        raise UsageError(
            f"the cluster's name is {cluster.name}, not {name}",
            fix=f"check that this is the right hosts.yaml, then use --confirm {cluster.name}",
        )


@contextmanager
def locked(path: Path, options: Options) -> Iterator[HeldLock]:
    """Hold the cluster's lock during a verb that edits hosts.yaml, from before it reads the file.

    Raises:
        LockedError: Another run holds the lock; nothing was read or written.
        InventoryError: hosts.yaml is not valid YAML.
    """
    password = options.vault_password or None
    state_dir = find_state_dir(path, vault_password_file=options.vault_password_file, ask_vault_pass=password)
    with cluster_lock(state_dir, verb=options.verb, run=new_run_id(time.time())) as held:
        yield held


def run_and_report(cluster: Cluster, plan: Plan, options: Options, *, as_json: bool, lock: HeldLock | None = None) -> Report:
    """Run a plan and print its report, unless the verb prints JSON."""
    report = run_plan(cluster, plan, options, lock=lock)
    if not as_json:
        print_report(report, cluster.path)
        if report.exit_code:
            emit(next_steps(cluster, report))
    return report
