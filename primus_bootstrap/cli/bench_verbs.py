"""The verb `bench`, which measures GPU hosts and quarantines bad ones, shows the last bench, or resets the breaker."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.report.rows import findings, host_rows, place, summary
from primus_bootstrap.bench.results.store import BenchStore, check_tier
from primus_bootstrap.cli.console import coloured, emit, emit_json, emit_table, plain_table, say
from primus_bootstrap.cli.day2 import ask_name
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
    examples,
)
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.report_view import print_report
from primus_bootstrap.cli.run_verbs import load_for_run, run_options, run_plan
from primus_bootstrap.core.errors import RunError, UsageError
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.report import EXIT_FAILED

if TYPE_CHECKING:
    from primus_bootstrap.bench.report.bench_report import BenchRun
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

PHASE = "bench"
_PLACES_SHOWN = 4

TierName = Annotated[
    str, typer.Option("--tier", help="What to measure: checks, quick, standard, deep, or a tier of the site's policy.", metavar="TIER")
]
Changed = Annotated[
    bool, typer.Option("--changed", help="Only hosts that never passed, or whose software changed since; apply does the same.")
]
AtOnce = Annotated[
    int, typer.Option("--at-once", min=0, help="Number of hosts to measure at the same time; 0 for the number of --forks.", metavar="N")
]
Last = Annotated[bool, typer.Option("--last", help="Show the last bench; measure nothing.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Also write the HTML report to this file.", metavar="FILE")]
JunitFile = Annotated[Path | None, typer.Option("--junit", help="Also write a JUnit XML report to this file.", metavar="FILE")]
ResetBreaker = Annotated[
    bool, typer.Option("--reset-breaker", help="Allow benches to quarantine hosts again, after you resolved the cause; measure nothing.")
]


def register(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("bench", epilog=examples("bench --tier quick", "bench --limit gpu1,gpu2", "bench --last --html bench.html"))(bench)


def bench(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    limit: Limit = None,
    tier: TierName = "",
    changed: Changed = False,
    at_once: AtOnce = 0,
    last: Last = False,
    html: HtmlFile = None,
    junit: JunitFile = None,
    reset_breaker: ResetBreaker = False,
    confirm: Confirmed = "",
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure GPU hosts, compare them with thresholds, each other and their history, and quarantine bad ones. Safe to repeat.

    The site's policy decides which failures lead to a quarantine (owner primus-bench); a host that passes is released. Exit code 4 if
    a host fails or is unknown. See docs/bench.md.
    """
    options = run_options(PHASE, None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_for_run(hosts, options)
    folder = cluster.state_dir / "bench"
    if reset_breaker:
        _reset_breaker(cluster, folder, confirm)
        return
    code = 0
    if tier and not last and (policy_file := _policy_file(cluster)) is not None:
        check_tier(policy_file, tier)
    if not last:
        extra = [
            f"bench_force={str(not changed).lower()}",
            *([f"bench_tier={tier}"] if tier else []),
            *([f"bench_parallel_hosts={at_once}"] if at_once else []),
        ]
        code = _measure(cluster, folder, limit, replace(options, limited=limit is not None, extra_vars=tuple(extra)), as_json=as_json)
    run_folder = BenchStore(folder).last_report()
    for name, target in (("bench.html", html), ("junit.xml", junit)):
        _copy(run_folder / name, target)
    run = read_run(run_folder / "bench.json")
    if as_json:
        emit_json(run.to_json())
    else:
        _print(run, run_folder, cluster.path)
    if any(outcome in ("fail", "unknown") for _, outcome in run.hosts):
        code = code or EXIT_FAILED
    raise typer.Exit(code)


def _policy_file(cluster: Cluster) -> str | None:
    """Return the site's policy, which the role reads too; empty for the shipped one, None if only the role can find it."""
    hosts = cluster.groups.get("gpu_node") or ()
    path = str(cluster.view.variables(hosts[0]).get("bench_policy_file") or "") if hosts else ""
    return path if not path or Path(path).is_absolute() else None


def _measure(cluster: Cluster, folder: Path, limit: str | None, options: Options, *, as_json: bool) -> int:
    """Run the phase `bench` and return the exit code of the run; end the verb if no host was measured."""
    before = set(folder.glob("runs/*"))
    names = cluster.select(limit) if limit else ()
    if limit and not set(names) & set(cluster.groups.get("gpu_node", ())):
        raise UsageError(f"--limit {limit}: no host of gpu_node", fix="use hosts of the group gpu_node: only these are measured")
    # The controllers are included, because they quarantine and release the hosts.
    with_controllers = ",".join((*names, *cluster.groups.get("slurm_controller", ()))) if limit else None
    report = run_plan(cluster, make_plan(cluster, phases=(PHASE,), limit=with_controllers), options)
    if not as_json and any(host.failures for host in report.hosts):
        print_report(report, cluster.path)
    if not set(folder.glob("runs/*")) - before:
        if as_json:
            emit_json(report.to_json())
        else:
            emit("no host was measured" if report.exit_code else "nothing to do: every host has passed with its current software")
        raise typer.Exit(report.exit_code)
    return report.exit_code


def _reset_breaker(cluster: Cluster, folder: Path, confirm: str) -> None:
    path = folder / "breaker.json"
    if not path.exists():
        emit("nothing to do: the breaker is not open")
        return
    ask_name(cluster, confirm, verb="bench --reset-breaker", what="The next bench may quarantine hosts again.")
    path.unlink()
    emit("the breaker is reset; run the bench again")


def _copy(source: Path, target: Path | None) -> None:
    if target is None:
        return
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise RunError(
            f"cannot write {target}: {error.strerror or error}", fix=f"use a path that is writable; the report is {source}"
        ) from error


def _print(run: BenchRun, run_folder: Path, file: Path) -> None:
    table = plain_table("host", "verdict", "pass", "fail", "unknown", "skipped", "decision")
    for row in host_rows(run):
        table.add_row(row.host, coloured(row.verdict), *map(str, row.counts), row.decision)
    emit_table(table)
    for finding in findings(run):
        places = [f"{place(each)}{' ' + each.device if each.device else ''}" for each in finding.places]
        more = f" and {len(places) - _PLACES_SHOWN} more" if len(places) > _PLACES_SHOWN else ""
        emit(f"\n{finding.verdict}: {finding.check}: {', '.join(places[:_PLACES_SHOWN])}{more}\n  {finding.reasons[0]}")
        if finding.fix:
            emit(with_inventory(f"  fix: {finding.fix}", file))
    emit(f"\n{summary(run)}")
    if run.breaker:
        fix = with_inventory(run.breaker.fix.replace("CLUSTER_NAME", run.cluster), file)
        say(f"the breaker is open, so no host is quarantined: {run.breaker.reason}\n  fix: {fix}")
    emit(f"report: {run_folder / 'bench.html'}")
