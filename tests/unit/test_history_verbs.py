"""The verbs `report` and `runs`, during a run and after an interrupted one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from primus_bootstrap.cli.main import app
from primus_bootstrap.engine.events import PhaseFinished, PhaseStarted, RunFinished, RunStarted
from primus_bootstrap.engine.journal import Journal
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.report import Tally, report_text
from primus_bootstrap.engine.state_folder import RunFolder, runs_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = "20260101T000000Z-aaaa"
STEPS = (("baseline", ("n1", "n2")), ("gpu", ("n2",)), ("verify", ("n1", "n2")))


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """A hosts.yaml with two hosts."""
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "all:\n  vars: {cluster_name: blue}\n  hosts: {n1: {ansible_host: 10.0.0.1}, n2: {ansible_host: 10.0.0.2}}\n"
        "  children: {gpu_node: {hosts: {n2: }}, container_host: {hosts: {n1: }}}\n"
    )
    return path


def write_run(state_dir: Path, *, end: RunFinished | None) -> None:
    """Write a run that has finished `baseline` and was ended, or has not ended, in `gpu`."""
    folder = RunFolder(runs_dir(state_dir) / RUN)
    folder.path.mkdir(parents=True)
    folder.plan.write_text(json.dumps({"steps": [{"phase": phase, "hosts": names} for phase, names in STEPS]}))
    started = time.time() - 60
    events: list[Any] = [
        RunStarted(RUN, "apply", "blue", started, STEPS),
        PhaseStarted("baseline", 1, 3, ("n1", "n2"), started),
        PhaseFinished("baseline", 20.0, (("n1", 1, 0, 0), ("n2", 1, 1, 0))),
        PhaseStarted("gpu", 2, 3, ("n2",), started + 20),
    ]
    if end:
        events += [PhaseFinished("gpu", 5.0, (), aborted=True), end]
    journal, tally = Journal(folder.journal), Tally()
    for event in events:
        journal.write(event)
        tally.add(event)
    journal.close()
    if end:
        folder.report.write_text(report_text(tally.report()), encoding="utf-8")


@pytest.fixture
def running(hosts: Path) -> Iterator[Path]:
    """The hosts.yaml of a cluster whose first apply has not ended."""
    state_dir = hosts.parent / ".primus" / "blue"
    with cluster_lock(state_dir, verb="apply", run=RUN):
        write_run(state_dir, end=None)
        yield hosts


def output(*words: object) -> str:
    """Return the output of a verb, which must succeed."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_report_shows_the_running_apply(running: Path) -> None:
    """Hosts with unfinished phases are running; nothing is called killed or interrupted."""
    text = output("report", running)

    assert "running: phase 2 of 3, gpu, for 1m0" in text
    assert "apply blue: 2 running; 1 change, running, run" in text
    assert "killed" not in text
    assert "interrupted" not in text
    assert output("report", running, "--run", RUN[:9]).splitlines()[:-1] == text.splitlines()[:-1]


def test_a_running_apply_has_no_exit_code(running: Path) -> None:
    """In JSON it is null, and the end is 0."""
    data = json.loads(output("report", running, "--json"))

    assert (data["run"], data["exit_code"], data["finished"], data["killed"]) == (RUN, None, 0.0, False)


def test_a_run_without_events_has_just_started(hosts: Path) -> None:
    """The lock is held, but there is no journal."""
    with cluster_lock(hosts.parent / ".primus" / "blue", verb="apply", run=RUN):
        result = CliRunner().invoke(app, ["report", str(hosts)])

    assert "has just started" in str(result.exception)
