"""Test training jobs that Slurm runs, with faults of hosts, ranks, disks and watchers."""

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
    """Return the jobs in Slurm by number."""
    return training.lab.sh(SERVICE, "squeue --noheader --format=%A").split()


def test_slurm_gives_the_same_losses(training: Training, undisturbed: dict[int, float]) -> None:
    """The losses equal those of a direct run, and no job remains in Slurm."""
    job = training.submit("slurm")
    state = training.finish(job)

    assert training.losses(job) == undisturbed
    assert state["restarts"] == 0
    assert wait_for(lambda: queued(training) == [], timeout_s=60, every_s=1)


def test_quarantined_host_is_excluded(training: Training) -> None:
    """Also if only the host has the record, and Slurm does not."""
    found, output = training.submit_beside("slurm", 2, "node3")
    state = training.finish(found["id"])

    assert "node3 is quarantined by ada (a fan is broken); it is left out" in output
    assert "node3" not in {host["name"] for host in state["hosts"]}
    assert [one["host"] for one in state["excluded"]] == ["node3"]


def test_power_failure_of_a_host(training: Training, undisturbed: dict[int, float], capsys: pytest.CaptureFixture[str]) -> None:
    """The next job is submitted at once without the lost host, and without Slurm's delay of two minutes."""
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


def test_hanging_rank(training: Training, undisturbed: dict[int, float]) -> None:
    """Cause, rank and host are recorded, and the next Slurm job excludes the host."""
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


def test_nan_in_one_rank(training: Training, undisturbed: dict[int, float]) -> None:
    """Exit code 76 passes through srun and sbatch, no host is blamed, and the next job continues at the checkpoint."""
    job = training.submit("slurm", settings="drill: {kind: nan, step: 12, rank: 1}")
    state = training.finish(job)

    assert (state["attempts"][0]["exit_code"], state["attempts"][0]["cause"]) == (76, "not_finite"), state["attempts"]
    assert (state["restarts"], state["excluded"]) == (1, [])
    assert training.losses(job) == undisturbed


def test_full_disk_for_checkpoints(training: Training) -> None:
    """Every attempt ends with 74, and the job with the disk as its reason; no host is blamed."""
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


def test_spare_replaces_a_quarantined_host(training: Training) -> None:
    """With one of three hosts in quarantine, the job runs on the others and the spare."""
    found, output = training.submit_beside("slurm", 3, "node3")
    state = training.finish(found["id"])

    assert f"spare {SPARE} takes its place" in output
    assert {host["name"] for host in state["hosts"]} == {"node2", "node4", SPARE}


def test_sigterm_to_one_rank_does_not_use_the_retry_budget(training: Training, undisturbed: dict[int, float]) -> None:
    """Exit code 75 passes through srun; Slurm does not requeue, and the watcher continues at once."""
    job = training.submit("slurm")
    training.wait_for_step(job, 12)
    training.kill_ranks(training.hosts(job)[0], signal="TERM")
    state = training.finish(job)

    assert state["attempts"][0]["exit_code"] == 75, state["attempts"]
    assert (state["restarts_without_progress"], state["excluded"]) == (0, [])
    assert training.losses(job) == undisturbed


def test_job_without_progress_is_ended(training: Training) -> None:
    """The retry budget ends the job with the reason, and no job remains in Slurm."""
    job = training.submit("slurm", "workload_backoff_s=[0, 1, 1]", settings="drill: {kind: crash, step: 1, rank: 0, once: false}")
    state = training.wait_for_phase(job, "failed", "done")

    assert (state["phase"], state["restarts"]) == ("failed", 3)
    assert "3 restarts without progress" in state["reason"], state["reason"]
    assert wait_for(lambda: queued(training) == [], timeout_s=60, every_s=1)


def test_ten_kills_in_a_row(training: Training, undisturbed: dict[int, float]) -> None:
    """Ten Slurm jobs in sequence continue from checkpoints without using up the retry budget of three."""
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


def test_held_job_reports_its_reason(training: Training, undisturbed: dict[int, float]) -> None:
    """A hold is neither a failure nor removed by the watcher; the status has the reason and the fix."""
    job = training.submit("slurm", "workload_slurm_options=[--hold]")
    assert wait_for(lambda: "scontrol release" in training.show(job).get("reason", ""), timeout_s=120, every_s=1), training.show(job)
    held = training.show(job)
    training.lab.sh(SERVICE, f"scontrol release {queued(training)[0]}")
    state = training.finish(job)

    assert (held["phase"], held["attempt"]) == ("starting", 1)
    assert state["restarts"] == 0
    assert training.losses(job) == undisturbed


def test_killed_watcher_submits_once(training: Training, undisturbed: dict[int, float]) -> None:
    """After a restart it finds its job in Slurm by name, and submits nothing twice."""
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


def test_scancel_is_not_a_host_failure(training: Training) -> None:
    """After `scancel` no host is excluded."""
    job = training.submit("slurm")
    training.wait_for_step(job, 7)
    training.lab.sh(SERVICE, f"scancel {queued(training)[0]}")
    state = training.wait_for_phase(job, "done", "failed", "cancelled")

    assert state["excluded"] == []
    assert state["reason"]


def test_missing_slurmctld_is_unknown(training: Training, undisturbed: dict[int, float]) -> None:
    """Without an answer the job's state is unknown, not failed, and training continues."""
    job = training.submit("slurm", settings="drill: {kind: slow, step: 1, rank: 0, slow_s: 1.2}")
    training.wait_for_step(job, 7)
    training.lab.sh(SERVICE, "systemctl stop slurmctld")
    time.sleep(45)
    training.lab.sh(SERVICE, "systemctl start slurmctld")
    state = training.finish(job)

    assert state["restarts"] == 0
    assert training.losses(job) == undisturbed


def test_cancel_and_resume(training: Training, undisturbed: dict[int, float]) -> None:
    """A cancelled job is removed from Slurm, and continues at its checkpoint."""
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
