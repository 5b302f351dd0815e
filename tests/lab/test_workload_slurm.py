"""The same jobs handed to Slurm: a lost host costs what Slurm needs to notice and a part of a minute, and a watcher may die at any time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import wait_for
from tests.lab.workload_fixture import SPARE
from tests.lab.workload_rig import HANG_DRILL, HANGS, SERVICE

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


def test_slurm_is_told_of_a_host_in_quarantine(training: Training) -> None:
    """Also where the record is on the host alone, and Slurm itself knows nothing of it."""
    found, said = training.submit_beside("slurm", 2, "node3")
    state = training.finish(found["id"])

    assert "node3 is quarantined by ada (a fan is broken); it is left out" in said
    assert "node3" not in {host["name"] for host in state["hosts"]}
    assert [one["host"] for one in state["excluded"]] == ["node3"]


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
    assert [record["host"] for record in training.lines(job, "verdicts.jsonl")] == [victim]


def test_a_rank_that_hangs(training: Training, undisturbed: dict[int, float]) -> None:
    """As on hosts of the watcher's own: cause, rank and host are known, and the next Slurm job leaves the host out."""
    job = training.submit("slurm", HANGS, settings=HANG_DRILL)
    training.wait_for_step(job, 6)
    hung = training.hosts(job)[1]
    state = training.finish(job)
    first, second = state["attempts"]

    assert (first["cause"], first["exit_code"], first["last_step"]) == ("no_progress", 77, 11), state["attempts"]
    assert training.suspects(job, 1) == [1]
    assert [(one["host"], one["cause"]) for one in state["excluded"]] == [(hung, "no_progress")]
    assert hung not in second["hosts"]
    assert 6 <= second["first_step"] <= 11, "it began anew"
    assert state["restarts"] == 1
    assert training.losses(job) == undisturbed


def test_a_rank_that_writes_nan_once(training: Training, undisturbed: dict[int, float]) -> None:
    """The trainer's 76 comes through srun and sbatch, no host is blamed, and the next job goes on from the checkpoint."""
    job = training.submit("slurm", settings="drill: {kind: nan, step: 12, rank: 1}")
    state = training.finish(job)

    assert (state["attempts"][0]["exit_code"], state["attempts"][0]["cause"]) == (76, "not_finite"), state["attempts"]
    assert (state["restarts"], state["excluded"]) == (1, [])
    assert training.losses(job) == undisturbed


def test_a_full_disk_under_the_checkpoints(training: Training) -> None:
    """Every attempt ends with 74, and the job with the disk as its reason; no host is blamed, and nothing is left in Slurm."""
    training.lab.sh("node2", "mkdir -p /mnt/small && mount -t tmpfs -o size=512k,mode=1777 tmpfs /mnt/small")
    try:
        values = ("workload_nodes=1", "workload_slurm_options=[--nodelist=node2]", "workload_checkpoint_folder=/mnt/small/ckpt")
        job = training.submit("slurm", *values, "workload_backoff_s=[0, 1, 1]")
        state = training.wait_for_phase(job, "failed", "done")
    finally:
        training.lab.sh("node2", "umount --lazy /mnt/small")

    assert state["phase"] == "failed"
    assert {one["exit_code"] for one in state["attempts"]} == {74}, state["attempts"]
    assert "disk" in state["reason"].lower() or "space" in state["reason"].lower(), state["reason"]
    assert state["excluded"] == []
    assert wait_for(lambda: queued(training) == [], timeout_s=60, every_s=1)


def test_a_spare_takes_the_place_where_every_other_host_is_needed(training: Training) -> None:
    """Three hosts of the partition, one of them in quarantine: the job goes where the spare one is beside the others."""
    found, said = training.submit_beside("slurm", 3, "node3")
    state = training.finish(found["id"])

    assert f"spare {SPARE} takes its place" in said
    assert {host["name"] for host in state["hosts"]} == {"node2", "node4", SPARE}


def test_sigterm_to_one_rank_costs_no_restart_of_the_budget(training: Training, undisturbed: dict[int, float]) -> None:
    """The trainer's 75 comes through srun; sbatch ends well, so that Slurm itself does not requeue, and the watcher goes on at once."""
    job = training.submit("slurm")
    training.wait_for_step(job, 12)
    training.kill_ranks(training.hosts(job)[0], signal="TERM")
    state = training.finish(job)

    assert state["attempts"][0]["exit_code"] == 75, state["attempts"]
    assert (state["restarts_without_progress"], state["excluded"]) == (0, [])
    assert training.losses(job) == undisturbed


def test_a_job_that_never_progresses_is_given_up(training: Training) -> None:
    """The budget ends it, with the reason, and nothing of it is left in Slurm."""
    job = training.submit("slurm", "workload_backoff_s=[0, 1, 1]", settings="drill: {kind: crash, step: 1, rank: 0, once: false}")
    state = training.wait_for_phase(job, "failed", "done")

    assert (state["phase"], state["restarts"]) == ("failed", 3)
    assert "3 restarts without progress" in state["reason"], state["reason"]
    assert wait_for(lambda: queued(training) == [], timeout_s=60, every_s=1)


def test_ten_kills_in_a_row(training: Training, undisturbed: dict[int, float]) -> None:
    """Ten Slurm jobs after the first, one after the other, each from a checkpoint; the budget of three is never spent."""
    job = training.submit("slurm", "workload_backoff_s=[0]", settings="drill: {kind: slow, step: 1, rank: 0, slow_s: 2}")
    # Steps of two seconds: on a busy machine seconds pass between a look and the kill, and sixty steps have to last for ten of them.
    for kill in range(10):
        training.wait_for_progress(job, kill + 1)
        training.wait_for_step(job, 5 + 5 * kill)
        hosts = training.hosts(job)
        training.kill_ranks(hosts[kill % len(hosts)])
        assert wait_for(lambda kill=kill: training.show(job)["attempt"] >= kill + 2, timeout_s=180, every_s=1), training.show(job)  # type: ignore[misc]
    state = training.finish(job, timeout_s=1800)

    assert state["restarts"] == 10
    assert state["excluded"] == []
    assert training.losses(job) == undisturbed
    assert wait_for(lambda: queued(training) == [], timeout_s=60, every_s=1)


def test_a_held_job_says_so_and_goes_on_when_it_is_released(training: Training, undisturbed: dict[int, float]) -> None:
    """An administrator's hold is neither a failure nor lifted by the watcher; the reason, and what lifts it, are in the status."""
    job = training.submit("slurm", "workload_slurm_options=[--hold]")
    assert wait_for(lambda: "scontrol release" in training.show(job).get("reason", ""), timeout_s=120, every_s=1), training.show(job)
    held = training.show(job)
    training.lab.sh(SERVICE, f"scontrol release {queued(training)[0]}")
    state = training.finish(job)

    assert (held["phase"], held["attempt"]) == ("starting", 1)
    assert state["restarts"] == 0
    assert training.losses(job) == undisturbed


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
    training.resume(job)
    training.finish(job)

    assert left == []
    assert cancelled["checkpoint"] >= 10
    assert training.losses(job) == undisturbed
