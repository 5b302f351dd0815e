#!/usr/bin/env python3
"""Draw the pictures of the README: docs/images/*.svg.

    .venv/bin/python tools/screenshots.py            # write docs/images
    .venv/bin/python tools/screenshots.py --out DIR  # write elsewhere

The live view and the report are the program's own. The events are constructed: the plan of `inventory/lab`, the phase times of
one run on two busy cores, and a host whose container was killed. The pictures depend neither on the machine nor on the time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.text import Text

from primus_bootstrap.cli.live import LiveView
from primus_bootstrap.cli.report_view import next_steps, print_report
from primus_bootstrap.core.verdicts import Verdict
from primus_bootstrap.engine.estimates import Estimate
from primus_bootstrap.engine.events import (
    Event,
    HostResult,
    PhaseFinished,
    PhaseStarted,
    Recap,
    RunFinished,
    RunStarted,
    TaskStarted,
    VerdictFound,
)
from primus_bootstrap.engine.fixes import known_fix
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.report import report_from_events
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from primus_bootstrap.engine.plan_values import Plan
    from primus_bootstrap.inventory.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COMMAND = ("primus-bootstrap", "apply", "inventory/lab", "--yes")
WIDTH = 132
START = 1795773136.0  # 2026-11-27 12:32:16 UTC
# Seconds of each phase of one run; a new phase has DEFAULT_S until it is measured.
DEFAULT_S = 10.0
PHASE_SECONDS = {
    "preflight": 12.0, "baseline": 38.0, "gpu": 17.0, "runtime": 18.0, "monitoring": 73.0, "storage": 44.0,
    "gateway": 22.0, "registry": 35.0, "slurm": 74.0, "scheduling": 13.0, "bench": 7.0, "verify": 56.0,
}  # fmt: skip

UNCHANGED = {"preflight", "verify"}
RUNNING_SECONDS = 9
LOST, ADDRESS = "node2", "10.187.1.12"
CAUSE = f"ssh: connect to host {ADDRESS} port 22: Connection timed out"
# (pass, skipped) verdicts of each host in the same run.
VERDICTS = {"node1": (105, 49), "node2": (73, 54), "node3": (73, 54)}


def phase_seconds(phase: str) -> float:
    """Return the duration of a phase."""
    return PHASE_SECONDS.get(phase, DEFAULT_S)


def first_task(file: str) -> str:
    """Return the name of the first task in a file below roles/."""
    return str(yaml.safe_load((ROOT / "roles" / file).read_text(encoding="utf-8"))[0]["name"])


def lost_host() -> HostResult:
    """Return the result of the first task of preflight on a host that does not answer."""
    task = first_task("preflight/tasks/probe.yml")
    fix = known_fix(CAUSE, host=LOST, address=ADDRESS, known_hosts="known_hosts")
    return HostResult(LOST, "preflight", "preflight", task, "roles/preflight/tasks/probe.yml:1", "unreachable", message=CAUSE, fix=fix)


def verdicts(host: str) -> list[Event]:
    """Return the verdicts of the checks on a host."""
    passed, skipped = VERDICTS[host]
    records = [Verdict("check", host, "pass")] * passed + [
        Verdict("check", host, "skipped", reason="not possible in a container")
    ] * skipped
    return [VerdictFound("verify", record) for record in records]


def phase_events(plan: Plan, phase: str, at: float, *, lost: str = "", changed: bool = True) -> list[Event]:
    """Return the events of a phase that ended, without the host `lost`."""
    number, hosts = next((number, step.hosts) for number, step in enumerate(plan.steps, start=1) if step.phase == phase)
    changes = changed and phase not in UNCHANGED
    results = [HostResult(host, phase, "", "Configure", "", "changed") for host in hosts if changes and host != lost]
    counts = tuple((host, 8, int(changes), 0) for host in hosts if host != lost)
    return [PhaseStarted(phase, number, len(plan.steps), hosts, at), *results, PhaseFinished(phase, phase_seconds(phase), counts)]


def running_events(plan: Plan) -> tuple[list[Event], float]:
    """Return the events up to the first task of the phase `storage`, and the time of the picture."""
    phases = [step.phase for step in plan.steps]
    number = phases.index("storage")
    events: list[Event] = []
    at = START
    for phase in phases[:number]:
        events += phase_events(plan, phase, at)
        at += phase_seconds(phase)
    task = TaskStarted("storage", "redis", first_task("redis/tasks/install.yml"), at)
    return [*events, PhaseStarted("storage", number + 1, len(phases), plan.steps[number].hosts, at), task], at + RUNNING_SECONDS


def failure_events(plan: Plan) -> tuple[list[Event], float]:
    """Return the events of a second apply, in which one host does not answer, and the time of its end."""
    steps = tuple((step.phase, step.hosts) for step in plan.steps)
    events: list[Event] = [RunStarted("20261127T123216Z-d27c", "apply", plan.cluster, START, steps)]
    at = START
    for phase, _ in steps:
        started, *rest = phase_events(plan, phase, at, lost=LOST, changed=False)
        events += [started, *([lost_host()] if phase == "preflight" else []), *rest]
        at += phase_seconds(phase)
    for host in plan.hosts:
        events += verdicts(host) if host != LOST else []
    return [*events, Recap(failed=(), unreachable=(LOST,)), RunFinished(at, 4)], at


def drawn(plan: Plan, events: list[Event], now: float) -> Text:
    """Return what the live view shows at a time, as text with colours."""
    clock = [START]
    view = LiveView("apply", plan, {phase: Estimate(took, took) for phase, took in PHASE_SECONDS.items()}, clock=lambda: clock[0])
    with contextlib.redirect_stderr(io.StringIO()):
        for event in events:
            view.handle(event)
    clock[0] = now
    console = Console(width=WIDTH, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        console.print(view.render())
    return Text.from_ansi(capture.get())


def report_text(cluster: Cluster, events: list[Event]) -> Text:
    """Return the report of a run, as `apply` prints it."""
    report = report_from_events(events)
    if report is None:
        raise ValueError("the events have no start")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_report(report, cluster.path)
        print(next_steps(cluster, report))
    return Text.from_ansi(printed.getvalue())


def save(path: Path, title: str, *parts: Text) -> None:
    """Write one picture."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="standard", highlight=False)
        console.print(Text(f"$ {' '.join(COMMAND)}", style="bold"))
        for part in parts:
            console.print(part)
        svg = console.export_svg(title=title, unique_id=path.stem)
    # The font of rich's template comes from another server; the browser's own monospaced font does as well.
    start, end = svg.index("@font-face"), svg.rindex("@font-face")
    end = svg.index("}", end) + 1
    path.write_text(svg[:start] + svg[end:], encoding="utf-8")
    print(path)


def main() -> None:
    """Write both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES, metavar="DIR", help="folder of the pictures (default: docs/images)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    os.environ |= {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TZ": "UTC"}
    time.tzset()
    sys.argv = list(COMMAND)
    cluster = load_cluster(Path("inventory/lab"))
    plan = make_plan(cluster)
    events, now = running_events(plan)
    save(folder / "apply.svg", "apply, running", drawn(plan, events, now))
    events, now = failure_events(plan)
    save(folder / "failure.svg", "apply, with a host that does not answer", drawn(plan, events, now), report_text(cluster, events))


if __name__ == "__main__":
    main()
