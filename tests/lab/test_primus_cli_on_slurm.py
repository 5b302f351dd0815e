"""What a person types on a login host: `primus-cli slurm srun` and `sbatch` over two hosts of a real Slurm."""

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

HOME = "/jfs/ada"
# The run of `undisturbed`: the same steps of the same schedule. From the second `--` on it is what is typed on a laptop.
RUN = f"-- direct --venv {VENV} --nproc 1 -- train pretrain --config debug-dense checkpoint.every_steps=5 checkpoint.keep=3"


def typed(training: Training, name: str, slurm: str, *, steps: int = 60, before: str = "") -> subprocess.CompletedProcess[str]:
    """Type a command line as a person on the login host; the run folder is on the shared file system."""
    training.lab.sh(SERVICE, f"install -d -o ada {HOME}")
    command = f"{before} primus-cli --output {HOME}/{name} slurm {slurm} -N 2 {RUN} train.steps={steps}"
    return training.lab.person(SERVICE, f"cd {HOME} && {command}", timeout_s=600)


def losses(training: Training, name: str) -> dict[int, float]:
    """Return the loss of every step of a run."""
    lines = training.lab.sh(SERVICE, f"cat {HOME}/{name}/steps.jsonl").splitlines()
    return {found["step"]: found["loss"] for found in map(json.loads, lines)}


@pytest.mark.parametrize("command", ["srun", "sbatch --wait"])
def test_two_hosts_learn_what_a_watched_job_learns(training: Training, undisturbed: dict[int, float], command: str) -> None:
    """One launcher a host, one rank each, and they found each other: address, port and number come from Slurm's step."""
    name = command.partition(" ")[0]
    done = typed(training, name, command)
    ranks = [json.loads(training.lab.sh(SERVICE, f"cat {HOME}/{name}/logs/rank-0000{number}.json")) for number in (0, 1)]

    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(training, name) == undisturbed
    assert len({rank["node"] for rank in ranks}) == 2, ranks


def test_sigterm_leaves_a_checkpoint_and_the_same_command_goes_on(training: Training) -> None:
    """It reaches the ranks on both hosts through Slurm; 75 says that the run is not over, and the second call ends it."""
    first = typed(training, "stopped", "srun", steps=4000, before="timeout --preserve-status --signal=TERM 60")
    reached = max(losses(training, "stopped"))
    saved = training.lab.sh(SERVICE, f"cat {HOME}/stopped/checkpoints/latest")

    assert first.returncode == 75, first.stdout + first.stderr
    assert reached > 5
    assert int(saved.rpartition("-")[2]) >= reached - 1
    assert training.lab.sh(SERVICE, "squeue --noheader") == ""
