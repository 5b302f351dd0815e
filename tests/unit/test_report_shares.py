"""The line of `report` with the duration of each phase."""

from __future__ import annotations

from dataclasses import replace

from primus_bootstrap.cli.report_view import shares_line
from primus_bootstrap.engine.report import PhaseReport, Report

RUN = Report(run="r", verb="apply", cluster="c", started=100.0, finished=200.0, exit_code=0, hosts=(), phases=())
PHASES = (PhaseReport("baseline", 20.0, 3, "done"), PhaseReport("slurm", 75.0, 3, "done"), PhaseReport("verify", 0.0, 3, "not_reached"))


def test_phases_are_sorted_by_duration() -> None:
    """Each phase has its share of the run; a phase that was not reached is omitted."""
    assert shares_line(replace(RUN, phases=PHASES)) == "time: slurm 1m15s (75 %), baseline 20s (20 %)"


def test_the_start_has_a_share() -> None:
    """The seconds before the first phase are those of no phase."""
    started = replace(RUN, phases=PHASES, preparing_s=5.0)

    assert shares_line(started) == "time: slurm 1m15s (75 %), baseline 20s (20 %), starting Ansible 5s (5 %)"


def test_a_killed_run_has_no_shares() -> None:
    """Its duration is unknown."""
    assert shares_line(replace(RUN, phases=PHASES, finished=0.0)) == ""
