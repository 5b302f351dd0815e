"""`bench`: measure GPU hosts, judge them together, and keep the bad ones out; show the last bench; reset the breaker."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.report.rows import findings, host_rows, place, summary
from primus_bootstrap.bench.results.run_store import last_run
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
)
from primus_bootstrap.cli.report_view import print_report
from primus_bootstrap.cli.run_verbs import given_options, run_plan
from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.report import EXIT_FAILED
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from primus_bootstrap.bench.report.bench_report import BenchRun
    from primus_bootstrap.inventory.cluster import Cluster

PHASE = "bench"
_PLACES_SHOWN = 4

TierName = Annotated[
    str, typer.Option("--tier", help="How thoroughly: checks, quick, standard, deep, or a tier of the site's policy.", metavar="TIER")
]
Changed = Annotated[bool, typer.Option("--changed", help="Only hosts that never passed, or that run something else since; as apply does.")]
AtOnce = Annotated[int, typer.Option("--at-once", min=0, help="Hosts measured at the same time; 0 is as many as --forks allows.")]
Last = Annotated[bool, typer.Option("--last", help="Show the last bench and measure nothing.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Also copy the page to this file.", metavar="FILE")]
JunitFile = Annotated[Path | None, typer.Option("--junit", help="Also copy the JUnit XML to this file.", metavar="FILE")]
ResetBreaker = Annotated[
    bool, typer.Option("--reset-breaker", help="Let benches quarantine again; measures nothing. You have looked at the cause.")
]


def register(app: typer.Typer) -> None:
    """Mount the verb."""
    app.command("bench")(bench)


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
    """Measure GPU hosts, judge them by floor, peers and history, and keep the bad ones out. Safe to repeat.

    A host that fails where the policy says so is quarantined (owner primus-bench); one that passes is put back into service. Exit code 0:
    nothing speaks against any host; 4: one failed, or is unknown. docs/bench.md says how to read it.
    """
    options = given_options(PHASE, None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=options.vault_password or None)
    folder = cluster.state_dir / "bench"
    if reset_breaker:
        _reset_breaker(cluster, folder, confirm)
        return
    code = 0
    if not last:
        before = set(folder.glob("runs/*"))
        names = cluster.select(limit) if limit else ()
        # The controllers belong to it: they are told who comes back and who goes.
        narrowed = ",".join((*names, *cluster.groups.get("slurm_controller", ()))) if limit else None
        if limit and not set(names) & set(cluster.groups.get("gpu_node", ())):
            raise PlanError(f"--limit {limit}: no host of gpu_node", fix="name hosts of gpu_node, which alone are measured")
        made = make_plan(cluster, phases=(PHASE,), limit=narrowed)
        words = [
            f"bench_force={str(not changed).lower()}",
            *([f"bench_tier={tier}"] if tier else []),
            *([f"bench_at_once={at_once}"] if at_once else []),
        ]
        report = run_plan(cluster, made, replace(options, limited=limit is not None, extra_vars=tuple(words)))
        code = report.exit_code
        if not as_json and any(host.failures for host in report.hosts):
            print_report(report, cluster.path)
        if not set(folder.glob("runs/*")) - before:
            if as_json:
                emit_json(report.to_json())
            else:
                emit("nothing was measured" if code else "nothing to do: every host has passed with what it runs")
            raise typer.Exit(code)
    own = last_run(folder)
    for name, target in (("bench.html", html), ("junit.xml", junit)):
        _copy(own / name, target)
    run = read_run(own / "bench.json")
    if as_json:
        emit_json(run.to_json())
    else:
        _print(run, own)
    if any(outcome in ("fail", "unknown") for _, outcome in run.hosts):
        code = code or EXIT_FAILED
    raise typer.Exit(code)


def _reset_breaker(cluster: Cluster, folder: Path, confirm: str) -> None:
    path = folder / "breaker.json"
    if not path.exists():
        emit("nothing to do: no breaker stands")
        return
    ask_name(cluster, confirm, verb="bench --reset-breaker", what="The next bench may quarantine hosts again.")
    path.unlink()
    emit("the breaker is reset; bench the hosts again")


def _copy(source: Path, target: Path | None) -> None:
    if target is None:
        return
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise RunError(
            f"cannot write {target}: {error.strerror or error}", fix=f"name a file that can be written; the report is {source}"
        ) from error


def _print(run: BenchRun, own: Path) -> None:
    table = plain_table("host", "verdict", "pass", "fail", "unknown", "skipped", "decision")
    for row in host_rows(run):
        table.add_row(row.host, coloured(row.verdict), *map(str, row.counts), row.decision)
    emit_table(table)
    for finding in findings(run):
        places = [f"{place(each)}{' ' + each.device if each.device else ''}" for each in finding.places]
        more = f" and {len(places) - _PLACES_SHOWN} more" if len(places) > _PLACES_SHOWN else ""
        emit(f"\n{finding.verdict}: {finding.check}: {', '.join(places[:_PLACES_SHOWN])}{more}\n  {finding.reasons[0]}")
        if finding.fix:
            emit(f"  fix: {finding.fix}")
    emit(f"\n{summary(run)}")
    if run.breaker:
        say(f"the breaker holds, and nobody is quarantined: {run.breaker.reason}\n  fix: {run.breaker.fix}")
    emit(f"report: {own / 'bench.html'}")
