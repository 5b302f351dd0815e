"""Test jobs on the lab's Slurm: a dead host, preemption, a wrong key and a full disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import wait_for
from tests.lab.slurm_rig import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

COMPUTE = ("node2", "node3")
EVERY_GPU = ("-N2", "--ntasks-per-node=1", "--gpus-per-node=8", "-t", "5")


@pytest.fixture
def jobs(cluster: RunningLab) -> Iterator[Jobs]:
    """The cluster with idle nodes and without jobs of the user, also afterwards."""
    found = Jobs(cluster)
    found.cancel_all()
    idle = wait_for(lambda: all(found.node_state(node)[0] == "IDLE" for node in COMPUTE), timeout_s=120, every_s=1)
    assert idle, [found.node_state(node) for node in COMPUTE]
    yield found
    found.cancel_all()


@pytest.mark.fault
def test_job_of_a_dead_host_finishes_on_another(jobs: Jobs) -> None:
    """After a power failure, Slurm requeues the job, and it finishes."""
    job = jobs.submit('echo "start $(hostname -s)"; sleep 15; echo done', "-N1", "--gpus-per-node=8", "-t", "5", "--open-mode=append")
    first = jobs.wait_until(job, "RUNNING")["NodeList"]
    assert wait_for(lambda: jobs.output(job) == [f"start {first}"], timeout_s=30, every_s=0.5)

    jobs.lab.fault("kill", first)
    jobs.wait_until(job, "PENDING", timeout_s=180)
    jobs.start_now(job)
    second = jobs.wait_until(job, "COMPLETED", timeout_s=180)

    assert second["NodeList"] != first
    assert second["Restarts"] == "1"
    assert jobs.output(job) == [f"start {first}", f"start {second['NodeList']}", "done"]
    jobs.lab.heal()
    assert wait_for(lambda: jobs.node_state(first)[0] == "IDLE", timeout_s=120, every_s=1), jobs.node_state(first)


@pytest.mark.fault
def test_urgent_job_preempts_another(jobs: Jobs) -> None:
    """A job with the QOS high preempts one with low, which is requeued and finishes."""
    low = jobs.submit("echo start; sleep 20; echo done", *EVERY_GPU, "--qos=low", "--open-mode=append")
    jobs.wait_until(low, "RUNNING")
    assert wait_for(lambda: jobs.output(low) == ["start"], timeout_s=30, every_s=0.5)

    high = jobs.submit("hostname -s", *EVERY_GPU, "--qos=high")
    jobs.wait_until(high, "COMPLETED", timeout_s=120)
    again = jobs.wait_until(low, "PENDING", "RUNNING")
    jobs.start_now(low)
    last = jobs.wait_until(low, "COMPLETED", timeout_s=180)

    assert again["Restarts"] == last["Restarts"] == "1"
    assert jobs.output(low) == ["start", "start", "done"]


def test_job_has_the_profile_and_leaves_no_process(jobs: Jobs) -> None:
    """The host's profile is in the job's environment, and remaining processes are ended."""
    expected = jobs.lab.sh("node2", "cat /etc/primus/env.d/*.env | grep -o '^[A-Z0-9_]*=' | sort -u | tr -d '='").split()
    script = "env | cut -d= -f1 | sort -u; setsid sleep 987654 < /dev/null > /dev/null 2>&1 &"
    job = jobs.submit(script, "-N1", "--nodelist=node2", "-t", "2")
    jobs.wait_until(job, "COMPLETED")

    assert expected
    assert set(expected) <= set(jobs.output(job))
    assert wait_for(lambda: jobs.lab.execute("node2", "pgrep", "-f", "sleep 987654").returncode == 1, timeout_s=60, every_s=1)


@pytest.mark.fault
def test_exit_code_75_requeues_the_job(jobs: Jobs) -> None:
    """Exit code 75 means unfinished with a checkpoint: the job is requeued and finishes."""
    job = jobs.submit("test -e ran-$SLURM_JOB_ID && exit 0; touch ran-$SLURM_JOB_ID; exit 75", "-N1", "-t", "2")

    assert wait_for(lambda: jobs.show(job).get("Restarts") == "1", timeout_s=90, every_s=0.5), jobs.show(job)
    jobs.start_now(job)
    assert jobs.wait_until(job, "COMPLETED", timeout_s=120)["Restarts"] == "1"


@pytest.mark.fault
def test_wrong_munge_key_is_reported_and_corrected(jobs: Jobs) -> None:
    """Verify fails only on the host with the wrong key, and apply corrects it."""
    lab = jobs.lab
    lab.sh("node3", "head -c 64 /dev/urandom | base64 -w0 > /etc/munge/munge.key && systemctl restart munge")

    broken = {row["host"]: row for row in lab.verify()["services"] if row["service"] == "munge"}
    done = lab.apply("--phase", "slurm", "--limit", "node3")
    after = {row["host"]: row["verdict"] for row in lab.verify()["services"] if row["service"] == "munge"}

    assert broken["node3"]["verdict"] == "fail", broken
    assert "key" in broken["node3"]["reason"]
    assert {row["verdict"] for host, row in broken.items() if host != "node3"} == {"pass"}
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(after.values()) == {"pass"}


@pytest.mark.fault
def test_full_disk_of_the_controller_loses_no_job(jobs: Jobs) -> None:
    """Verify reports that slurmctld cannot write its state; with free space the waiting job runs."""
    lab = jobs.lab
    state = "/var/lib/slurm"
    waiting = jobs.submit("echo ran", "-N1", "-t", "2", "--hold")
    lab.sh(
        "node1",
        f"systemctl stop slurmctld; cp -a {state} /root/slurm.kept; mount -t tmpfs -o size=2m tmpfs {state};"
        f" cp -a /root/slurm.kept/. {state}/; chown --reference=/root/slurm.kept {state}; systemctl start slurmctld; sleep 3;"
        f" dd if=/dev/zero of={state}/filler bs=4k 2> /dev/null || true",
    )
    try:
        broken = [row for row in lab.verify()["services"] if row["service"] == "slurm" and row["host"] == "node1"]
    finally:
        lab.sh(
            "node1",
            f"rm {state}/filler; systemctl stop slurmctld; rm -rf /root/slurm.full; cp -a {state} /root/slurm.full; umount {state};"
            f" cp -a /root/slurm.full/. {state}/; systemctl start slurmctld; rm -rf /root/slurm.full /root/slurm.kept",
        )
    assert wait_for(lambda: jobs.state(waiting) == "PENDING", timeout_s=60, every_s=1)
    lab.sh("node1", f"scontrol release {waiting}")
    jobs.wait_until(waiting, "COMPLETED")

    assert broken[0]["verdict"] in ("fail", "unknown"), broken
    assert f"MiB free under {state}" in broken[0]["reason"]
    assert jobs.output(waiting) == ["ran"]
