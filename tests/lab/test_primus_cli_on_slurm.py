"""Test `primus-cli slurm srun` and `sbatch` on two hosts of a real Slurm, as a user on the login host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lab.workload_fixture import VENV
from tests.lab.workload_rig import SERVICE

if TYPE_CHECKING:
    import subprocess

    from tests.lab.workload_rig import Training

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

HOME = "/jfs/home/ada"
# The run of `undisturbed`: the same steps of the same schedule. From the second `--` on it is what is typed on a laptop.
RUN = f"-- direct --venv {VENV} --nproc 1 -- train pretrain --config debug-dense train.steps=60 checkpoint.every_steps=5 checkpoint.keep=3"


# Behind a command line: once some steps are done, SIGTERM to what was started, and its exit code.
STOPPED = """& pid=$!
for second in $(seq 300); do [ "$(grep -c loss stopped/steps.jsonl 2> /dev/null)" -ge 7 ] 2> /dev/null && break; sleep 1; done
kill -TERM $pid; wait $pid"""


def typed(training: Training, name: str, slurm: str, *, more: str = "", behind: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line as a user on the login host, with the run folder on shared storage."""
    command = f"primus-cli --output {HOME}/{name} slurm {slurm} -N 2 {RUN} {more} {behind}"
    return training.lab.person(SERVICE, f"cd {HOME} || exit\n{command}", timeout_s=900)


def begin(training: Training, name: str) -> None:
    """Remove an earlier run with that name from the user's home."""
    training.lab.sh(SERVICE, f"rm -rf {HOME}/{name}")


def losses(training: Training, name: str) -> dict[int, float]:
    """Return the loss of every step of a run."""
    lines = training.lab.sh(SERVICE, f"cat {HOME}/{name}/steps.jsonl").splitlines()
    return {found["step"]: found["loss"] for found in map(json.loads, lines)}


@pytest.mark.parametrize("command", ["srun", "sbatch --wait"])
def test_two_hosts_have_the_same_losses_as_a_watched_job(training: Training, undisturbed: dict[int, float], command: str) -> None:
    """One launcher per host with one rank each; Slurm's step provides address, port and rank."""
    name = command.partition(" ")[0]
    begin(training, name)
    done = typed(training, name, command)
    ranks = [json.loads(training.lab.sh(SERVICE, f"cat {HOME}/{name}/logs/rank-0000{number}.json")) for number in (0, 1)]

    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(training, name) == undisturbed
    assert len({rank["node"] for rank in ranks}) == 2, ranks


def test_sigterm_writes_a_checkpoint(training: Training) -> None:
    """The ranks on both hosts receive it, the exit code is 75, and a second call finishes the run."""
    begin(training, "stopped")
    # A step takes long enough that none of the two calls is over too soon.
    slow = "drill.kind=slow drill.step=1 drill.rank=0 drill.slow_s=1.0"
    first = typed(training, "stopped", "srun", more=slow, behind=STOPPED)
    reached = max(losses(training, "stopped"))
    left = training.lab.sh(SERVICE, "squeue --noheader")
    second = typed(training, "stopped", "srun", more=slow)

    assert first.returncode == 75, first.stdout + first.stderr
    assert 7 <= reached < 60
    assert left == ""
    assert second.returncode == 0, second.stdout + second.stderr
    assert sorted(losses(training, "stopped")) == list(range(1, 61))
