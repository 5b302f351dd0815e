"""What the day-2 verbs share: the `node` family, their arguments, how an edit of hosts.yaml is shown and confirmed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from primus_bootstrap.cli.console import emit, say
from primus_bootstrap.cli.options import DEFAULT_HOSTS
from primus_bootstrap.cli.report_view import print_report, what_now
from primus_bootstrap.cli.run_verbs import need_terminal, print_plan, run_plan
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.journal import new_run_id
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import find_state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.engine.lock import HeldLock
    from primus_bootstrap.engine.plan import TargetHost
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

node_app = typer.Typer(
    no_args_is_help=True, help="Day 2: one host of a running cluster comes, goes, is replaced, leaves service and comes back."
)


def split_words(words: Sequence[str], names: Sequence[str]) -> tuple[Path, list[str]]:
    """Tell the hosts.yaml, which may be left out, from the names behind it.

    Raises:
        PlanError: there are too many words, or too few.
    """
    if len(words) == len(names):
        return DEFAULT_HOSTS, list(words)
    if len(words) == len(names) + 1:
        return Path(words[0]), list(words[1:])
    raise PlanError(f"{len(words)} words are given: {' '.join(words)}", fix=f"give [hosts.yaml] {' '.join(names)}")


def make_node_plan(cluster: Cluster, playbook: str, subject: TargetHost, *, without: Sequence[str] = ()) -> Plan | None:
    """Return the plan of a day-2 playbook, phases of these names left out; None where no host would be touched."""
    try:
        made = make_plan(cluster, playbook=playbook, subject=subject)
    except PlanError:
        return None
    steps = tuple(step for step in made.steps if step.phase not in without)
    return replace(made, steps=steps) if steps else None


def show_change(diff: str, cluster: Cluster, made: Plan | None) -> None:
    """Show what hosts.yaml would become, and what would be done."""
    if diff:
        say(f"{diff}\n")
    if made:
        print_plan(cluster, made)


def ask_yes(question: str, *, verb: str) -> None:
    """Ask whether to go on; no ends the verb."""
    need_terminal(verb, fix="add --yes")
    typer.confirm(question, abort=True, err=True)


def ask_name(cluster: Cluster, given: str, *, verb: str, what: str) -> None:
    """Demand the cluster's name, from `--confirm` or typed now.

    Raises:
        PlanError: it is another name, or there is none and nobody to ask.
    """
    if not given:
        need_terminal(verb, fix=f"add --confirm {cluster.name}")
        given = typer.prompt(f"{what} Type the cluster's name to go on", err=True)
    if given != cluster.name:
        raise PlanError(
            f"the cluster's name is {cluster.name}, and not {given}", fix=f"is it the right hosts.yaml? Then --confirm {cluster.name}"
        )


@contextmanager
def locked(path: Path, options: Options) -> Iterator[HeldLock]:
    """Hold the cluster's lock for a verb that edits hosts.yaml: it is taken before the file is read, and released when all is done.

    Raises:
        LockedError: another run holds it; nothing was read or written.
        InventoryError: hosts.yaml cannot be read as YAML.
    """
    password = options.vault_password or None
    state_dir = find_state_dir(path, vault_password_file=options.vault_password_file, ask_vault_pass=password)
    with cluster_lock(state_dir, verb=options.verb, run=new_run_id(time.time())) as held:
        yield held


def run_and_report(cluster: Cluster, made: Plan, options: Options, *, as_json: bool, lock: HeldLock | None = None) -> Report:
    """Run a plan and print what came of it; JSON is left to the verb, which has more to say."""
    report = run_plan(cluster, made, options, lock=lock)
    if not as_json:
        print_report(report, cluster.path)
        if report.exit_code:
            emit(what_now(cluster, report))
    return report
