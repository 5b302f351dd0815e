"""Test the failover of two Slurm controllers with shared state."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import RunningLab, wait_for
from tests.lab.slurm_rig import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2400), pytest.mark.fault]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create four hosts: node1 for services, node2 as the primary controller, node3 as the backup, node4 for jobs."""
    for lab in create_lab(RunningLab(f"test{os.getpid()}-d", tmp_path_factory.mktemp("twin")), "--core", "--nodes", "4"):
        text = lab.hosts_file.read_text()
        one = "    slurm_controller:\n      hosts:\n        node1:\n"
        assert one in text
        text = text.replace(one, "    slurm_controller:\n      hosts:\n        node2:\n        node3:\n")
        more = "    slurm_shared_state_dir: /jfs/.slurm\n    slurm_controller_timeout_s: 15\n\n  hosts:\n"
        lab.hosts_file.write_text(text.replace("\n  hosts:\n", more, 1))
        done = lab.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab


# slurmctld writes down what changed within five seconds (SAVE_MAX_WAIT of src/slurmctld/state_save.c); what it had not is lost with it.
SAVED_S = 10


def leader(lab: RunningLab) -> str:
    """Return the controllers that answer, as seen from the login host."""
    return lab.execute("node1", "timeout", "30", "scontrol", "ping").stdout


def test_backup_takes_over_and_returns(twin: RunningLab) -> None:
    """After the primary host dies, the running job and new jobs complete; after its return it is primary again."""
    jobs = Jobs(twin)
    running = jobs.submit("sleep 40; echo done", "-N1", "--nodelist=node4", "-t", "5")
    waiting = jobs.submit("echo ran", "-N1", "--nodelist=node4", "-t", "2", f"--dependency=afterok:{running}")
    jobs.wait_until(running, "RUNNING")
    time.sleep(SAVED_S)

    twin.fault("kill", "node2")
    took_over = wait_for(lambda: jobs.state(running) != "", timeout_s=180, every_s=1)
    submitted = jobs.submit("echo new", "-N1", "--nodelist=node4", "-t", "2")
    states = [jobs.wait_until(job, "COMPLETED", timeout_s=240)["JobState"] for job in (running, waiting, submitted)]
    during = leader(twin)

    twin.heal()
    back = wait_for(lambda: "DOWN" not in leader(twin) and leader(twin).count("UP") == 2, timeout_s=180, every_s=2)

    assert took_over
    assert states == ["COMPLETED"] * 3
    assert [jobs.output(job) for job in (running, waiting, submitted)] == [["done"], ["ran"], ["new"]]
    assert "DOWN" in during
    assert back, leader(twin)
    assert twin.verify()["exit_code"] == 0


def test_state_is_saved_after_a_remount(twin: RunningLab) -> None:
    """After a restart of JuiceFS on the primary, slurmctld writes to the new mount."""
    state = "/jfs/.slurm/slurmctld/job_state"
    # On a server systemd makes every mount shared when it boots; in a container it leaves them as the engine made them.
    for node in ("node2", "node3"):
        twin.sh(node, "mount --make-rshared / && systemctl restart slurmctld")
    assert wait_for(lambda: leader(twin).count("UP") == 2, timeout_s=120, every_s=2), leader(twin)

    twin.sh("node2", "systemctl restart juicefs", timeout_s=240)
    twin.sh("node3", "touch /jfs/.slurm-before")
    jobs = Jobs(twin)
    job = jobs.submit("echo ran", "-N1", "--nodelist=node4", "-t", "2")
    ended = jobs.wait_until(job, "COMPLETED", timeout_s=240)["JobState"]
    saved = wait_for(lambda: twin.execute("node3", "test", state, "-nt", "/jfs/.slurm-before").returncode == 0, timeout_s=60, every_s=1)
    # The host sees a mount of its own. Only its own user may look where slurmctld looks: root of a container may not trace.
    own = "/proc/$(systemctl show --property MainPID --value slurmctld)/root/jfs/.slurm"
    seen = twin.sh("node2", f"runuser -u slurm -- stat -c %d /jfs/.slurm {own}")

    assert ended == "COMPLETED"
    assert saved, twin.sh("node2", "tail -n 20 /var/log/slurm/slurmctld.log")
    assert len(set(seen.split())) == 1, seen
    assert twin.verify()["exit_code"] == 0
