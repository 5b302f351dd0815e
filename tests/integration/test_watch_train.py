"""primus-watch with the real trainer: a lost node does not change the losses."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.watch_rig import Site, needs_sshd, steps
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

_HAS_TORCH = not subprocess.run([sys.executable, "-c", "from importlib.metadata import version; version('torch')"], check=False).returncode

LONG = pytest.mark.long("primus_bootstrap/launch/watch", "tests/integration/watch_rig.py", "workloads/train")
pytestmark = [needs_sshd, pytest.mark.skipif(not _HAS_TORCH, reason="this Python has no torch")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Create a site with three nodes."""
    made = Site(tmp_path)
    made.start("node1", "node2", "node3")
    yield made
    made.end()


def submit(site: Site, name: str) -> JobFolder:
    """Submit a job that trains on two nodes, with one spare."""
    job: dict[str, Any] = site.job(
        name,
        nodes=2,
        processes_per_node=1,
        words=["train", "pretrain", "--config", "debug-dense", "train.steps=20", "checkpoint.every_steps=5"],
        options=[f"--python={sys.executable}"],
        environment={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        grace_s=30,
    )
    direct = job["direct"]
    hosts = [*direct["hosts"], *direct["spares"]]
    return site.submit({**job, "direct": {**direct, "hosts": hosts[:2], "spares": hosts[2:]}})


def losses(folder: JobFolder) -> dict[int, float]:
    """Return the loss of each step; of a repeated step, the later one."""
    return {line["step"]: line["loss"] for line in steps(folder)}


@LONG
def test_a_lost_node_does_not_change_the_losses(site: Site) -> None:
    """Bit by bit: same ranks and data, from the last complete checkpoint."""
    hit, calm = submit(site, "hit"), submit(site, "calm")
    watcher = site.watch(hit)
    until(lambda: len(losses(hit)) >= 8)
    site.nodes["node2"].kill()
    assert watcher.wait(180) == 0
    site.bring("node2")
    assert site.watch(calm).wait(180) == 0
    states = [folder.state() for folder in (hit, calm)]

    assert [(state.phase, state.attempt, state.step) for state in states if state] == [("done", 2, 20), ("done", 1, 20)]
    assert [host.name for host in states[0].hosts] == ["node1", "node3"]  # type: ignore[union-attr]
    assert losses(hit) == losses(calm)
    assert len(losses(hit)) == 20
