"""Use Slurm on a lab: submit jobs as the user of hosts.yaml, read jobs and nodes, wait for states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.lab.lab_rig import wait_for

if TYPE_CHECKING:
    from tests.lab.lab_rig import RunningLab


@dataclass(frozen=True)
class Jobs:
    """Jobs of one user, submitted on the login host."""

    lab: RunningLab
    login: str = "node1"

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script from a shared folder, and return the job's number."""
        words = " ".join(("sbatch", "--parsable", "--chdir=/jfs/home/ada", "--output=/jfs/home/ada/%j.out", *options))
        done = self.lab.person(self.login, f"{words} << 'EOF'\n#!/bin/sh\n{script}\nEOF\n", timeout_s=90)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, job: str) -> dict[str, str]:
        """Return the controller's fields of a job; empty without an answer or a job."""
        done = self.lab.execute(self.login, "timeout", "20", "scontrol", "--oneliner", "show", "job", job)
        return dict(word.partition("=")[::2] for word in done.stdout.split()) if done.returncode == 0 else {}

    def state(self, job: str) -> str:
        """Return a job's state, for example PENDING, or an empty string."""
        return self.show(job).get("JobState", "")

    def wait_until(self, job: str, *states: str, timeout_s: float = 120) -> dict[str, str]:
        """Wait until a job is in one of these states, and return its fields."""
        assert wait_for(lambda: self.state(job) in states, timeout_s=timeout_s, every_s=0.5), self.show(job)
        return self.show(job)

    def start_now(self, job: str) -> None:
        """Remove Slurm's two-minute delay of a requeued job."""
        self.lab.sh(self.login, f"scontrol update jobid={job} StartTime=now")

    def output(self, job: str) -> list[str]:
        """Return the output lines of a batch job, without Slurm's messages."""
        lines = self.lab.sh(self.login, f"cat /jfs/home/ada/{job}.out").splitlines()
        return [line for line in lines if not line.startswith("slurmstepd")]

    def cancel_all(self) -> None:
        """Cancel every job of the user, and wait until there is none."""
        self.lab.execute(self.login, "timeout", "20", "scancel", "--user=ada")
        wait_for(lambda: self.lab.execute(self.login, "squeue", "--noheader", "--user=ada").stdout == "", timeout_s=60, every_s=0.5)

    def node_state(self, node: str) -> tuple[str, str]:
        """Return a node's state, for example IDLE+DRAIN, and its reason."""
        done = self.lab.execute(self.login, "timeout", "20", "scontrol", "--oneliner", "show", "node", node)
        state = done.stdout.partition(" State=")[2].split(" ")[0]
        return state, done.stdout.partition(" Reason=")[2].partition(" [")[0].strip()
