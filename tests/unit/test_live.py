"""The live view of a run, on a terminal and without one."""

from __future__ import annotations

import pytest
from rich.console import Console

from primus_bootstrap.cli.console import duration_text
from primus_bootstrap.cli.live import LiveView
from primus_bootstrap.engine.events import Event, HostPinned, HostResult, PhaseFinished, PhaseStarted, RunFinished, Status, TaskStarted
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


def drawn(view: LiveView) -> str:
    """Return the current table as plain text."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view.render())
    return capture.get()


def test_the_table_shows_the_state_of_each_phase() -> None:
    """Finished, running and waiting phases show counts, task, elapsed and remaining time."""
    now = [100.0]
    view = LiveView("apply", PLAN, {"preflight": 4.0, "baseline": 30.0, "gpu": 10.0}, clock=lambda: now[0])
    for event in EVENTS:
        view.handle(event)
    now[0] = 114.0

    lines = drawn(view).splitlines()

    assert lines[0].strip() == "apply lab · phase 2 of 3 · 2 of 3 hosts lost · 14s, about 30s left"
    assert "✓" in lines[1]
    assert "3 of 3 done" in lines[1]
    assert "3/3 hosts · 2 lost · Install packages (baseline)" in lines[2]
    assert "about 10s" in lines[3]


def test_a_phase_without_an_earlier_run_prevents_an_estimate() -> None:
    """The remaining time is unknown then."""
    view = LiveView("apply", PLAN, {"preflight": 4.0, "baseline": 30.0})

    assert "left" not in drawn(view)


def test_without_a_terminal_there_is_one_line_per_phase(capsys: pytest.CaptureFixture[str]) -> None:
    """The output also has the start, each pinned key, and each lost host with its cause."""
    with LiveView("apply", PLAN, {}) as view:
        for event in (*EVENTS, PhaseFinished("baseline", 12.3, ())):
            view.handle(event)

    got = capsys.readouterr().err.splitlines()

    assert got == [
        "apply lab: 3 phases on 3 hosts",
        "pinned the host key of node1 (10.0.0.1) from first contact: ED25519 SHA256:abc",
        "[1/3] preflight: 3 of 3 done, 4s",
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

    assert "0/2 hosts" in running
    assert "2 of 3 done, 1 lost earlier" in drawn(view)


def test_an_interrupted_run_shows_unfinished_phases() -> None:
    """The current phase is `not finished`, later ones are `not run`, and there is no estimate."""
    view = LiveView("apply", PLAN, {"preflight": 4.0, "baseline": 30.0, "gpu": 10.0})
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

    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")] == [
        "[1/3] preflight: 2 of 3 done, 1 unreachable, 1s",
        "[2/3] baseline: 1 of 3 done, 1 failed, 1 lost earlier, 7s",
        "[3/3] gpu: not finished, 2 lost earlier, 1s",
    ]


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, "0s"), (59.4, "59s"), (185, "3m05s"), (7440, "2h04m")])
def test_durations_are_short(seconds: float, expected: str) -> None:
    """The text has at most two units."""
    assert duration_text(seconds) == expected
