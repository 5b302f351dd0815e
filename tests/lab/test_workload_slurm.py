"""The same jobs handed to Slurm: a lost host costs what Slurm needs to notice and a part of a minute, and a watcher may die at any time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import wait_for
from tests.lab.workload_rig import SERVICE

if TYPE_CHECKING:
    from tests.lab.workload_rig import Training

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(3600)]

RECOVERY_S = 60.0


def queued(training: Training) -> list[str]:
    """Return the jobs that Slurm has, by number."""
    return training.lab.sh(SERVICE, "squeue --noheader --format=%A").split()


def test_slurm_gives_the_same_losses(training: Training, undisturbed: dict[int, float]) -> None:
    """Who hands out the hosts does not change what is learnt; nothing is left in Slurm afterwards."""
    job = training.submit("slurm")
    state = training.finish(job)

    assert training.losses(job) == undisturbed
    assert state["restarts"] == 0
    assert wait_for(lambda: queued(training) == [], timeout_s=60, every_s=1)


def test_the_power_of_a_host_is_cut(training: Training, undisturbed: dict[int, float], capsys: pytest.CaptureFixture[str]) -> None:
    """The next job is submitted without the lost host, at once: Slurm's two minutes before a queued job starts do not count."""
    job = training.submit("slurm")
    training.wait_for_step(job, 12)
    victim = training.hosts(job)[1]
    killed_at = training.cut_power(victim)
    state = training.finish(job)
    detected, stepped = training.recovery(job, killed_at)
    with capsys.disabled():
        print(f"\nslurm: host lost; noticed after {detected:.1f} s, next step after {stepped:.1f} s")  # noqa: T201 - the figure that is promised

    assert stepped <= RECOVERY_S + detected
    assert training.losses(job) == undisturbed
    assert victim not in [host["name"] for host in state["hosts"]]
    assert [one["host"] for one in state["excluded"]] == [victim]


def test_the_watcher_is_killed_while_it_submits_and_later(training: Training, undisturbed: dict[int, float]) -> None:
    """Nothing is submitted twice: it finds its job in Slurm again, by its name."""
    job = training.submit("slurm")
    for _ in range(3):
        training.lab.sh(SERVICE, f"systemctl kill --signal=KILL primus-watch@{job}")
        time.sleep(3)
    training.wait_for_step(job, 12)
    training.lab.sh(SERVICE, f"systemctl kill --signal=KILL primus-watch@{job}")
    seen = queued(training)
    state = training.finish(job)

    assert len(seen) == 1
    assert state["attempt"] == 1
    assert training.losses(job) == undisturbed


def test_a_job_that_a_person_cancels_in_slurm_goes_on_or_says_so(training: Training) -> None:
    """`scancel` behind the watcher's back is no failure of a host: none is excluded."""
    job = training.submit("slurm")
    training.wait_for_step(job, 7)
    training.lab.sh(SERVICE, f"scancel {queued(training)[0]}")
    state = training.wait_for_phase(job, "done", "failed", "cancelled")

    assert state["excluded"] == []
    assert state["reason"]


def test_slurmctld_is_gone_for_a_while(training: Training, undisturbed: dict[int, float]) -> None:
    """A controller that does not answer makes the job's state unknown, never failed; training goes on meanwhile."""
    job = training.submit("slurm", settings="drill: {kind: slow, step: 1, rank: 0, slow_s: 1.2}")
    training.wait_for_step(job, 7)
    training.lab.sh(SERVICE, "systemctl stop slurmctld")
    time.sleep(45)
    training.lab.sh(SERVICE, "systemctl start slurmctld")
    state = training.finish(job)

    assert state["restarts"] == 0
    assert training.losses(job) == undisturbed


def test_cancel_stops_with_a_checkpoint_and_resume_goes_on(training: Training, undisturbed: dict[int, float]) -> None:
    """A cancelled job leaves Slurm, and comes back where it was."""
    job = training.submit("slurm")
    training.wait_for_step(job, 12)
    assert training.cli("cancel", job).returncode == 0
    cancelled = training.wait_for_phase(job, "cancelled", timeout_s=180)
    left = queued(training)
    assert training.cli("resume", job).returncode == 0
    training.finish(job)

    assert left == []
    assert cancelled["checkpoint"] >= 10
    assert training.losses(job) == undisturbed
