"""primus-watch with the target `slurm`: what is handed in, what is found again, nodes that are lost, a controller that is silent."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch.watch import folder as folders
from primus_bootstrap.launch.watch import state as states
from primus_bootstrap.launch.watch.hosts import choose
from primus_bootstrap.launch.watch.targets.slurm import SlurmTarget
from tests.unit.watch_rig import TRAIN, Site, events, steps, wait_until
from tests.unit.watch_slurm_rig import SlurmStandIn, break_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.launch.watch.folder import JobFolder


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmStandIn]:
    """Give a Slurm with three nodes."""
    made = SlurmStandIn(tmp_path / "slurm")
    made.start("n1", "n2", "n3")
    yield made
    made.end()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Give a service host."""
    made = Site(tmp_path)
    made.jobs.mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    yield made
    made.end()


def job(site: Site, **changes: Any) -> dict[str, Any]:
    """Return job.json of a job on one node."""
    found = {
        "schema": "primus.job/1",
        "id": "small-0a1b2c",
        "name": "small",
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "target": "slurm",
        "nodes": 1,
        "words": ["20", "0.2"],
        "options": ["--single", f"--script={site.folder}/train.py"],
        "grace_s": 5,
        "policy": {"lost_after_s": 5, "settle_s": 1, "lease_s": 5, "backoff_s": [0]},
        "slurm": {"partition": "gpu", "options": ["--time=1:00:00"]},
    }
    return {**found, **changes}


def start(site: Site, slurm: SlurmStandIn, **changes: Any) -> JobFolder:
    """Submit a job and watch it."""
    folder = site.submit(job(site, **changes))
    site.watch(folder, PATH=slurm.path)
    return folder


def ended(site: Site) -> int:
    """Wait for the watcher's end."""
    assert site.watcher is not None
    return site.watcher.wait(90)


def test_a_job_is_handed_in_once_and_runs_to_its_end(site: Site, slurm: SlurmStandIn) -> None:
    """With a name that it is found by, and never requeued by Slurm itself."""
    folder = start(site, slurm, words=["6", "0.05"], gpus_per_node=2, processes_per_node=1)

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.step, state.target_id, state.hosts[0].name) == ("done", 6, "100", "n1")
    (words,) = slurm.calls("sbatch")
    assert {
        "--no-requeue",
        "--job-name=primus-job-small-0a1b2c-1",
        "--nodes=1",
        "--partition=gpu",
        "--gpus-per-node=2",
        "--time=1:00:00",
    } <= {*words}


def test_a_node_that_slurm_loses_is_left_out_of_the_next_job(site: Site, slurm: SlurmStandIn) -> None:
    """A new job is handed in at once, and training goes on from the last checkpoint."""
    folder = start(site, slurm)
    wait_until(lambda: len(steps(folder)) >= 7)
    slurm.lose("n1")

    assert ended(site) == 0
    first, second = slurm.calls("sbatch")
    assert "--exclude=n1" in second
    assert "--exclude=n1" not in first
    assert sorted({line["step"] for line in steps(folder)}) == list(range(1, 21))
    assert [event["host"] for event in events(folder, "node_excluded")] == ["n1"]


def test_a_controller_that_is_silent_is_no_reason_for_anything(site: Site, slurm: SlurmStandIn) -> None:
    """The job runs on; nothing is handed in twice."""
    folder = start(site, slurm)
    wait_until(lambda: len(steps(folder)) >= 2)
    for name in ("squeue", "sacct", "sinfo"):
        break_command(slurm, name)
    wait_until(lambda: len(steps(folder)) >= 12)
    assert folder.state().phase == "running"  # type: ignore[union-attr]
    for name in ("squeue", "sacct", "sinfo"):
        break_command(slurm, name, broken=False)

    assert ended(site) == 0
    assert len(slurm.jobs()) == 1
    assert folder.state().attempt == 1  # type: ignore[union-attr]


def test_a_job_that_the_queue_has_forgotten_is_known_by_what_its_launchers_wrote(site: Site, slurm: SlurmStandIn) -> None:
    """Slurm forgets jobs after MinJobAge, and not every site has accounting."""
    folder = start(site, slurm, words=["10", "0.1"])
    wait_until(lambda: len(steps(folder)) >= 2)
    site.kill_watcher()
    wait_until(lambda: len(steps(folder)) >= 10)
    (slurm.folder / "forgotten").touch()
    break_command(slurm, "sacct")
    site.watch(folder, PATH=slurm.path)

    assert ended(site) == 0
    assert folder.state().phase == "done"  # type: ignore[union-attr]
    assert len(slurm.jobs()) == 1


def test_a_cancelled_job_writes_its_checkpoint_first(site: Site, slurm: SlurmStandIn) -> None:
    """SIGTERM goes to the launchers, once."""
    folder = start(site, slurm, words=["500", "0.1"])
    wait_until(lambda: len(steps(folder)) >= 2)
    folder.request(folders.CANCEL)

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, state.checkpoint) == ("cancelled", state.step)
    assert [words[1] for words in slurm.calls("scancel")] == ["--signal=TERM"]


def test_what_somebody_cancels_in_slurm_stays_cancelled(site: Site, slurm: SlurmStandIn) -> None:
    """The watcher does not argue with scancel."""
    folder = start(site, slurm, words=["500", "0.1"])
    wait_until(lambda: len(steps(folder)) >= 2)
    number = slurm.jobs()[0]["id"]
    subprocess.run([f"{slurm.folder}/bin/scancel", str(number)], check=True, timeout=30)

    assert ended(site) == 0
    state = folder.state()
    assert state is not None
    assert (state.phase, len(slurm.jobs())) == ("cancelled", 1)
    assert "not by a request" in state.reason


def test_an_attempt_that_slurm_has_is_not_handed_in_again(site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that was killed between sbatch and its note finds the job by its name; silence is no proof that there is none."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, words=["3", "0.05"]))
    target = SlurmTarget(folder.job(), folder)
    state = states.State("small-0a1b2c", phase=states.STARTING, attempt=1, attempts=(states.Attempt(1),))
    states.save(folder.state_file, state)
    break_command(slurm, "squeue")
    target.start(state)
    assert slurm.jobs() == []
    assert "squeue ended with exit code 1" in target.refused
    break_command(slurm, "squeue", broken=False)
    for _ in range(3):
        target.start(state)
        target = SlurmTarget(folder.job(), folder)

    assert len(slurm.jobs()) == 1


def test_hosts_are_left_out_only_as_long_as_enough_remain(site: Site, slurm: SlurmStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm refuses a job that can never run: the list is trimmed to what the partition allows."""
    monkeypatch.setenv("PATH", slurm.path)
    folder = site.submit(job(site, nodes=2))
    slurm.nodes(n3="down*")
    state = states.State("small-0a1b2c", excluded=tuple(states.Excluded(f"n{number}", number, "x", "y") for number in (1, 3)))
    hardware = replace(state, excluded=(states.Excluded("n1", 1, "gpu_lost", "y", hardware=True),))
    candidates = SlurmTarget(folder.job(), folder).candidates()

    assert [item.host for item in choose(folder.job(), state, candidates).excluded] == ["n3"]
    assert choose(folder.job(), hardware, candidates).returned == ("n1",)
    assert json.loads(folder.job_file.read_text())["nodes"] == 2
