"""Labs of the tests' own, kept apart from the user's: three bare hosts, and a whole cluster of three."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import RunningLab, engine_argv, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN_NAME = re.compile(r"primus-test(\d+)(-[abcdw])?-node")
# What primus-bootstrap exits with where this machine cannot run a lab at all.
_CANNOT = 3
# A lab that is up already, by its folder, to be used as `cluster` and left as it is: for writing tests.
_KEPT_CLUSTER = "PRIMUS_TEST_CLUSTER"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Bring up three bare hosts of every release in turn, once for the session."""
    yield from bring_up(RunningLab(f"test{os.getpid()}", tmp_path_factory.mktemp("lab")), "--release", "all", "--bare")


@pytest.fixture(scope="session")
def applied_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Bring up what `make lab` does and apply once for the session: node1 serves, node2 and node3 compute."""
    kept = os.environ.get(_KEPT_CLUSTER)
    if kept:
        name = re.search(r"cluster_name: (\S+)", (Path(kept) / "hosts.yaml").read_text())
        assert name, f"{kept}/hosts.yaml has no cluster_name"
        yield RunningLab(name[1], Path(kept))
        return
    for running in bring_up(RunningLab(f"test{os.getpid()}-c", tmp_path_factory.mktemp("cluster"))):
        done = running.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield running


@pytest.fixture
def cluster(applied_cluster: RunningLab) -> Iterator[RunningLab]:
    """Give the cluster to a test, and bring every host back afterwards, whatever the test did to it."""
    yield applied_cluster
    applied_cluster.heal()


def bring_up(running: RunningLab, *options: str) -> Iterator[RunningLab]:
    """Bring a lab up and take it down afterwards; skip, and say why, where this machine cannot run containers."""
    _remove_abandoned()
    done = run_cli("lab", "up", *options, "--name", running.name, "--dir", str(running.folder), timeout_s=1800)
    if done.returncode == _CANNOT:
        pytest.skip(f"this machine cannot run the lab: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield running
    finally:
        run_cli("lab", "down", "--purge", "--name", running.name, "--dir", str(running.folder))


def _remove_abandoned() -> None:
    """Remove the labs of test sessions that were killed: their name carries the number of a process that is gone."""
    argv = engine_argv()
    if shutil.which(argv[-1]) is None:
        return
    listed = subprocess.run([*argv, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, timeout=60, check=False)
    found = {(match[1], match[2] or "") for match in map(_OWN_NAME.match, listed.stdout.split()) if match}
    for number, suffix in found:
        if not Path(f"/proc/{number}").exists():
            run_cli("lab", "down", "--name", f"test{number}{suffix}")
