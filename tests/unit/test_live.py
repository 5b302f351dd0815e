"""The live view of a run, on a terminal and without one."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from primus_bootstrap.cli.console import duration_text
from primus_bootstrap.cli.live import LiveView
from primus_bootstrap.engine.estimates import Estimate
from primus_bootstrap.engine.events import (
    Event,
    HostPinned,
    HostResult,
    PhaseFinished,
    PhaseStarted,
    Preparing,
    RunFinished,
    Status,
    TaskStarted,
)
from primus_bootstrap.engine.plan_values import Plan, Step

HOSTS = ("node1", "node2", "node3")
PLAN = Plan(
    cluster="lab",
    inventory="hosts.yaml",
    steps=tuple(Step(name, f"{name}.yml", HOSTS, (name,), "all") for name in ("preflight", "baseline", "gpu")),
)


def result(host: str, status: Status, message: str = "") -> HostResult:
    """Return a result of the task of these tests."""
    return HostResult(host, "baseline", "baseline", "Install packages", "x.yml:1", status, message=message)


EVENTS: tuple[Event, ...] = (
    HostPinned("node1", "10.0.0.1", "ED25519", "SHA256:abc", "first contact"),
    PhaseStarted("preflight", 1, 3, HOSTS, 100.0),
    PhaseFinished("preflight", 4.0, ()),
    PhaseStarted("baseline", 2, 3, HOSTS, 104.0),
    TaskStarted("baseline", "baseline", "Install packages", 104.0),
    result("node1", "changed"),
    result("node2", "failed", "no space left on device\nmore"),
    result("node3", "unreachable", "connection timed out"),
)


def estimates(**seconds: float) -> dict[str, Estimate]:
    """Return the estimates of phases that take as long every time."""
    return {phase: Estimate(value, value) for phase, value in seconds.items()}


def drawn(view: LiveView) -> str:
    """Return the current table as plain text."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view.render())
    return capture.get()


def test_the_table_shows_the_state_of_each_phase() -> None:
    """Finished, running and waiting phases show counts, task, elapsed and remaining time."""
    now = [100.0]
    view = LiveView("apply", PLAN, estimates(preflight=4.0, baseline=30.0, gpu=10.0), clock=lambda: now[0])
    for event in EVENTS:
        view.handle(event)
    now[0] = 114.0

    lines = drawn(view).splitlines()

    assert lines[0].strip() == "apply lab · phase 2 of 3 · 2 of 3 hosts lost · 14s, about 30s left"
    assert "✓" in lines[1]
    assert "3 of 3 done" in lines[1]
    assert "task 1 · 3 of 3 hosts · 2 lost · Install packages (baseline)" in lines[2]
    assert "10s of about 30s" in lines[2]
    assert "about 10s" in lines[3]


@pytest.mark.parametrize(("installs", "changes", "left"), [(True, 0, "7s"), (False, 3, "1m40s"), (False, 0, "7s"), (True, 3, "1m40s")])
def test_the_remaining_time_follows_what_the_run_changes(*, installs: bool, changes: int, left: str) -> None:
    """If a phase changes as much as an installation, later phases install too; if it changes little, they repeat."""
    known = {name: Estimate(100.0, 7.0, installs=installs, changes=4.0) for name in ("baseline", "gpu")}
    view = LiveView("apply", PLAN, {**known, **estimates(preflight=4.0)}, clock=lambda: 0.0)
    view.handle(PhaseStarted("preflight", 1, 3, HOSTS, 0.0))
    view.handle(PhaseFinished("preflight", 4.0, ()))
    view.handle(PhaseStarted("baseline", 2, 3, HOSTS, 4.0))
    for host in HOSTS:
        for _ in range(changes):
            view.handle(result(host, "changed"))
    view.handle(PhaseFinished("baseline", 9.0, ()))

    assert f"about {left} left" in drawn(view)


def test_a_phase_without_an_earlier_run_prevents_an_estimate() -> None:
    """The remaining time is unknown then."""
    view = LiveView("apply", PLAN, estimates(preflight=4.0, baseline=30.0))

    assert "left" not in drawn(view)


def test_what_happens_before_the_first_phase_is_shown() -> None:
    """The first line has the step instead of a phase number; it disappears with the first phase."""
    view = LiveView("apply", PLAN, {}, clock=lambda: 12.0)
    before = drawn(view).splitlines()[0].strip()
    view.handle(Preparing("starting Ansible", 12.0))
    starting = drawn(view).splitlines()[0].strip()
    view.handle(PhaseStarted("preflight", 1, 3, HOSTS, 12.0))

    assert before == "apply lab · 3 hosts · 0s"
    assert starting == "apply lab · starting Ansible · 3 hosts · 0s"
    assert drawn(view).splitlines()[0].strip() == "apply lab · phase 1 of 3 · 3 hosts · 0s"


def test_the_number_of_a_task_counts_through_its_phase() -> None:
    """The hosts are those of the current task, and the next phase begins with its first task."""
    view = LiveView("apply", PLAN, {})
    tasks = [TaskStarted("baseline", "baseline", name, 1.0) for name in ("Install packages", "Write the hosts file")]
    for event in (PhaseStarted("baseline", 2, 3, HOSTS, 1.0), tasks[0], result("node1", "ok"), tasks[1]):
        view.handle(event)

    assert "task 2 · 0 of 3 hosts · Write the hosts file (baseline)" in drawn(view)


def test_without_a_terminal_a_long_phase_prints_its_task_every_30_s(capsys: pytest.CaptureFixture[str]) -> None:
    """So does a long start. Any other line postpones the next one."""
    now = [100.0]
    view = LiveView("apply", PLAN, estimates(baseline=200.0), clock=lambda: now[0])

    def at(seconds: float, *events: Event) -> None:
        now[0] = seconds
        for event in events:
            view.handle(event)
        view.tick()

    at(100.0, Preparing("starting Ansible", 100.0))
    at(129.0)
    at(130.0)
    at(140.0, PhaseStarted("baseline", 2, 3, HOSTS, 140.0), TaskStarted("baseline", "baseline", "Install packages", 140.0))
    at(169.0, result("node1", "ok"))
    at(171.0)
    at(180.0, result("node2", "failed", "disk full"))
    at(201.0)
    at(210.0, PhaseFinished("baseline", 70.0, ()), RunFinished(210.0, 4))
    at(300.0)

    assert capsys.readouterr().err.splitlines() == [
        "starting Ansible",
        "starting Ansible, 30s since the begin",
        "[2/3] baseline started on 3 hosts, about 3m20s",
        "[2/3] baseline, 31s: task 1 · 1 of 3 hosts · Install packages (baseline)",
        "node2 failed: Install packages: disk full",
        "[2/3] baseline: 2 of 3 done, 1 failed, 1m10s",
    ]


def test_without_a_terminal_there_is_one_line_per_phase(capsys: pytest.CaptureFixture[str]) -> None:
    """The output also has the start, each pinned key, and each lost host with its cause."""
    with LiveView("apply", PLAN, {}) as view:
        for event in (*EVENTS, PhaseFinished("baseline", 12.3, ())):
            view.handle(event)

    got = capsys.readouterr().err.splitlines()

    assert got == [
        "apply lab: 3 phases on 3 hosts",
        "pinned the host key of node1 (10.0.0.1) from first contact: ED25519 SHA256:abc",
        "[1/3] preflight started on 3 hosts",
        "[1/3] preflight: 3 of 3 done, 4s",
        "[2/3] baseline started on 3 hosts",
        "node2 failed: Install packages: no space left on device",
        "node3 unreachable: Install packages: connection timed out",
        "[2/3] baseline: 1 of 3 done, 1 changed, 1 failed, 1 unreachable, 12s",
    ]


def test_a_phase_does_not_count_hosts_that_were_lost_before_it() -> None:
    """A host that preflight lost is not part of later phases."""
    view = LiveView("apply", PLAN, {})
    lost = HostResult("node3", "preflight", "preflight", "Ask", "x.yml:1", "unreachable", message="no route")
    for event in (PhaseStarted("preflight", 1, 3, HOSTS, 1.0), lost, PhaseFinished("preflight", 1.0, ())):
        view.handle(event)
    view.handle(PhaseStarted("baseline", 2, 3, HOSTS, 2.0))
    running = drawn(view)
    view.handle(PhaseFinished("baseline", 1.0, ()))

    assert "  ▸  baseline   started" in running
    assert "2 of 3 done, 1 lost earlier" in drawn(view)


def test_an_interrupted_run_shows_unfinished_phases() -> None:
    """The current phase is `not finished`, later ones are `not run`, and there is no estimate."""
    view = LiveView("apply", PLAN, estimates(preflight=4.0, baseline=30.0, gpu=10.0))
    for event in (PhaseStarted("preflight", 1, 3, HOSTS, 1.0), PhaseFinished("preflight", 1.0, (), aborted=True), RunFinished(2.0, 130)):
        view.handle(event)

    lines = drawn(view).splitlines()

    assert "left" not in lines[0]
    assert "✗" in lines[1]
    assert "not finished" in lines[1]
    assert "not run" in lines[3]


def test_a_phase_that_continues_in_a_second_process_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Ansible aborted it and the remaining hosts continued: the line appears once, with all its seconds and hosts."""
    lost = HostResult("node3", "preflight", "preflight", "Ask", "x.yml:1", "unreachable", message="no route")
    failed = HostResult("node2", "baseline", "baseline", "Install", "x.yml:1", "failed", message="full")
    with LiveView("apply", PLAN, {}) as view:
        for event in (
            PhaseStarted("preflight", 1, 3, HOSTS, 1.0),
            lost,
            PhaseFinished("preflight", 1.0, ()),
            PhaseStarted("baseline", 2, 3, HOSTS, 2.0),
            failed,
            PhaseFinished("baseline", 3.0, (), aborted=True),
            PhaseStarted("baseline", 2, 3, ("node1",), 5.0),
            PhaseFinished("baseline", 4.0, ()),
            PhaseStarted("gpu", 3, 3, ("node1",), 9.0),
            PhaseFinished("gpu", 1.0, (), aborted=True),
            RunFinished(10.0, 4),
        ):
            view.handle(event)

    lines = capsys.readouterr().err.splitlines()

    assert "[2/3] baseline continues on 1 host, 1 lost earlier" in lines
    assert [line for line in lines if re.match(r"\[./3\] \w+:", line)] == [
        "[1/3] preflight: 2 of 3 done, 1 unreachable, 1s",
        "[2/3] baseline: 1 of 3 done, 1 failed, 1 lost earlier, 7s",
        "[3/3] gpu: not finished, 2 lost earlier, 1s",
    ]


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, "0s"), (59.4, "59s"), (185, "3m05s"), (7440, "2h04m")])
def test_durations_are_short(seconds: float, expected: str) -> None:
    """The text has at most two units."""
    assert duration_text(seconds) == expected
