"""Estimates of durations: only from runs that changed about as much."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.engine.estimates import Estimate, estimate_phases
from primus_bootstrap.engine.events import Event, HostResult, PhaseFinished, PhaseStarted, Recap, RunFinished, RunStarted
from primus_bootstrap.engine.plan_values import Step
from primus_bootstrap.engine.report import Tally, report_text
from primus_bootstrap.engine.state_folder import RunFolder, runs_dir

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("a", "b")


def step(*hosts: str, phase: str = "gpu") -> Step:
    """Return the step of a phase."""
    return Step(phase, f"{phase}.yml", hosts, (), "all")


def write_run(
    state_dir: Path,
    day: int,
    *,
    seconds: float,
    changes: int = 0,
    hosts: tuple[str, ...] = HOSTS,
    verb: str = "apply",
    failed: tuple[str, ...] = (),
) -> RunFolder:
    """Write a run of the phase `gpu`; `changes` is the number of changes on each host."""
    folder = RunFolder(runs_dir(state_dir) / f"202601{day:02}T000000Z-aaaa")
    folder.path.mkdir(parents=True)
    results = [HostResult(host, "gpu", "", f"Task {number}", "", "changed") for host in hosts for number in range(changes)]
    results += [HostResult(host, "gpu", "", "Install", "", "failed") for host in failed]
    events: list[Event] = [
        RunStarted(folder.run, verb, "small", 100.0, (("gpu", hosts),)),
        PhaseStarted("gpu", 1, 1, hosts, 100.0),
        *results,
        PhaseFinished("gpu", seconds, tuple((host, 1, changes, 0) for host in hosts)),
        Recap(failed, ()),
        RunFinished(200.0, 0),
    ]
    tally = Tally()
    for event in events:
        tally.add(event)
    folder.report.write_text(report_text(tally.report()), encoding="utf-8")
    folder.plan.write_text(json.dumps({"steps": [{"phase": "gpu", "hosts": hosts}]}), encoding="utf-8")
    folder.journal.touch()
    return folder


def expected_s(state_dir: Path, *hosts: str, verb: str = "apply") -> float | None:
    """Return the expected seconds of the phase `gpu`."""
    return estimate_phases(state_dir, [step(*hosts)], verb=verb)["gpu"].expected_s


def test_a_repetition_is_not_estimated_from_an_installation(tmp_path: Path) -> None:
    """After the first apply the duration of the second is unknown; after the second it is the second's."""
    write_run(tmp_path, 1, seconds=300.0, changes=40)
    after_one = expected_s(tmp_path, *HOSTS)
    write_run(tmp_path, 2, seconds=20.0)

    assert after_one is None
    assert expected_s(tmp_path, *HOSTS) == 20.0


def test_an_installation_is_not_estimated_from_a_repetition(tmp_path: Path) -> None:
    """A host that has not completed the phase makes the phase an installation."""
    write_run(tmp_path, 1, seconds=300.0, changes=40)
    write_run(tmp_path, 2, seconds=20.0)

    assert expected_s(tmp_path, "a", "new") == 300.0


def test_a_few_changes_are_a_repetition(tmp_path: Path) -> None:
    """A changed setting takes about as long as no change."""
    write_run(tmp_path, 1, seconds=300.0, changes=40)
    write_run(tmp_path, 2, seconds=24.0, changes=2)

    assert expected_s(tmp_path, *HOSTS) == 24.0


def test_a_host_that_failed_has_not_completed_the_phase(tmp_path: Path) -> None:
    """Its next apply installs."""
    write_run(tmp_path, 1, seconds=300.0, changes=40, failed=("b",))

    assert expected_s(tmp_path, *HOSTS) == 300.0
    assert expected_s(tmp_path, "a") is None


def test_an_added_node_has_completed_the_phase(tmp_path: Path) -> None:
    """`node add` installs what the next apply repeats. Its duration is not that of an apply."""
    write_run(tmp_path, 1, seconds=300.0, changes=40)
    write_run(tmp_path, 2, seconds=20.0)
    write_run(tmp_path, 3, seconds=77.0, changes=40, hosts=("c",), verb="node add c")

    assert expected_s(tmp_path, *HOSTS, "c") == 20.0


def test_a_phase_that_changes_nothing_takes_as_long_every_time(tmp_path: Path) -> None:
    """A check of new hosts takes as long as one of known hosts."""
    write_run(tmp_path, 1, seconds=12.0)

    assert expected_s(tmp_path, "new") == 12.0
    assert expected_s(tmp_path, *HOSTS) == 12.0


def test_the_estimate_is_the_median_of_runs_with_as_many_hosts(tmp_path: Path) -> None:
    """Runs with another number of hosts count only if no run has the same. A diff does not count for an apply."""
    for day, seconds in enumerate((10.0, 30.0, 20.0), start=1):
        write_run(tmp_path, day, seconds=seconds)
    write_run(tmp_path, 4, seconds=500.0, hosts=("a", "b", "c"))
    write_run(tmp_path, 5, seconds=900.0, verb="diff")

    assert expected_s(tmp_path, "a", "b") == 20.0
    assert expected_s(tmp_path, "a", "b", "c") == 500.0
    assert expected_s(tmp_path, "a") == 25.0
    assert expected_s(tmp_path, "a", "b", verb="diff") == 900.0
    assert estimate_phases(tmp_path, [step("a", phase="slurm")])["slurm"] == Estimate(installs=True)


@pytest.mark.parametrize("text", ["", '{"run": "r', "[]", "{}", "null", '{"verb": "apply", "phases": [{"seconds": 1}]}'])
def test_a_damaged_report_is_ignored(tmp_path: Path, text: str) -> None:
    """The estimate is that of the other runs."""
    write_run(tmp_path, 1, seconds=10.0)
    write_run(tmp_path, 2, seconds=500.0).report.write_text(text, encoding="utf-8")

    assert expected_s(tmp_path, *HOSTS) == 10.0
