"""A job of primus-watch that trains on a backend, on nodes of this machine: a lost node, and a rank that hangs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.backend_rig import FOLDER, LIMIT_S, SHIM, python_of
from tests.integration.watch_rig import Site, needs_sshd, steps
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

pytestmark = [pytest.mark.backend, needs_sshd, pytest.mark.timeout(4 * LIMIT_S)]
# Two starts of a backend and of torch on a busy machine.
_ENDED_S = 3 * LIMIT_S
_SLOW = ("drill.kind=slow", "drill.step=1", "drill.slow_s=1")  # time to break something between two steps


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Create a site with three nodes."""
    made = Site(tmp_path)
    made.start("node1", "node2", "node3")
    yield made
    made.end()


def submit(site: Site, backend: str, *settings: str) -> JobFolder:
    """Submit a job that trains on two nodes, with one spare."""
    python_of(backend)
    job: dict[str, Any] = site.job(
        backend,
        nodes=2,
        processes_per_node=1,
        words=["train", "pretrain", "--config", "debug-dense", f"backend={backend}", "checkpoint.every_steps=3", *settings],
        options=[f"--backend-folder={FOLDER}"],
        environment={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **SHIM},
        grace_s=60,
        policy={"lost_after_s": 15, "lease_s": 15, "progress_timeout_s": 300},
    )
    hosts = [*job["direct"]["hosts"], *job["direct"]["spares"]]
    return site.submit({**job, "direct": {**job["direct"], "hosts": hosts[:2], "spares": hosts[2:]}})


def log(site: Site, folder: JobFolder) -> str:
    """Return what explains a failure."""
    parts = [site.folder / "watch.log", *sorted((folder.run / "logs").glob("*.log"))]
    return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in parts if path.is_file())


@pytest.mark.parametrize("backend", ["torchtitan", "megatron"])
def test_a_job_that_loses_a_node_resumes_from_the_checkpoint_of_its_backend(backend: str, site: Site) -> None:
    """The spare takes part, the watcher sees steps and checkpoints, and repeated steps have the same losses."""
    folder = submit(site, backend, "train.steps=12", *_SLOW)
    watcher = site.watch(folder)
    until(lambda: len(steps(folder)) >= 5 or watcher.poll() is not None, lambda: log(site, folder), limit_s=_ENDED_S)
    site.nodes["node2"].kill()
    assert watcher.wait(_ENDED_S) == 0, log(site, folder)
    state = folder.state()

    assert state is not None
    assert (state.phase, state.attempt, state.step, state.checkpoint) == ("done", 2, 12, 12)
    assert [host.name for host in state.hosts] == ["node1", "node3"]
    first, second = state.attempts
    assert first.cause == "node_lost", state.attempts
    assert second.first_step is not None
    assert second.first_step >= 4
    assert second.first_step % 3 == 1, "a checkpoint is written every three steps"
    by_step: dict[int, list[float]] = {}
    for line in steps(folder):
        by_step.setdefault(line["step"], []).append(line["loss"])
    assert sorted(by_step) == list(range(1, 13))
    assert all(loss == pytest.approx(losses[0], rel=1e-4) for losses in by_step.values() for loss in losses)
    assert by_step[12][-1] < by_step[1][0] - 0.3
    assert "primus_train_step{" in next(folder.attempt(2).rglob("metrics.prom")).read_text()


@pytest.mark.parametrize("backend", ["torchtitan", "megatron"])
def test_a_rank_that_hangs_is_named_and_the_job_continues(backend: str, site: Site) -> None:
    """Every rank ends with 77, its phase and its stacks; the host of the hanging rank is left out."""
    folder = submit(
        site, backend, "train.steps=9", "drill.kind=hang", "drill.step=5", "drill.rank=1", "watchdog.step_timeout_s=40",
    )  # fmt: skip
    watcher = site.watch(folder)
    assert watcher.wait(_ENDED_S) == 0, log(site, folder)
    state = folder.state()

    assert state is not None
    first, second = state.attempts
    assert (first.cause, first.exit_code, first.last_step) == ("no_progress", 77, 4), state.attempts
    assert (state.phase, second.first_step, state.step) == ("done", 4, 9)
    assert [host.name for host in state.hosts] == ["node1", "node3"]
    diagnosis = json.loads((folder.attempt(1) / "diagnosis.json").read_text())
    assert [item["rank"] for item in diagnosis["suspects"]] == [1]
    assert "phase data" in diagnosis["suspects"][0]["why"]
