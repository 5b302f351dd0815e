"""Fixtures with separate labs for the tests: three bare hosts, and a whole cluster of three.

Tests that share a lab run in sequence, and the lab is removed after the last of them, because a running lab slows down the others.
"""

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
    from collections.abc import Generator, Iterator

_OWN_NAME = re.compile(r"primus-test(\d+)(-[a-z]+)?-node")
# What primus-bootstrap exits with where this machine cannot run a lab at all; after a traceback, Python does as well.
_CANNOT = 1
# A lab that is up already, by its folder, to be used as `cluster` and left as it is: for writing tests.
_KEPT_CLUSTER = "PRIMUS_TEST_CLUSTER"
# The fixtures that many tests share, in the order in which their tests run.
_SHARED = ("lab", "applied_cluster", "trained_cluster")
_UP = pytest.StashKey[dict[str, RunningLab]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests that share a lab next to each other, after those without a lab."""
    items.sort(key=lambda item: max((_SHARED.index(name) for name in _shared_by(item)), default=-1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Remove a lab that the next test does not need."""
    yield
    up = item.config.stash.get(_UP, {})
    for name in set(up) - set(_shared_by(nextitem) if nextitem else up):
        remove_lab(up.pop(name))


def _shared_by(item: pytest.Item) -> list[str]:
    """Return the shared labs of a test."""
    return [name for name in getattr(item, "fixturenames", ()) if name in _SHARED]


def share(request: pytest.FixtureRequest, running: RunningLab) -> None:
    """Register a lab for removal after the last test that needs it."""
    request.config.stash.setdefault(_UP, {})[str(request.fixturename)] = running


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create three bare hosts with all releases in rotation, once per session."""
    for running in create_lab(RunningLab(f"test{os.getpid()}", tmp_path_factory.mktemp("lab")), "--release", "all", "--bare"):
        share(request, running)
        yield running


@pytest.fixture(scope="session")
def applied_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create the cluster of `make lab`, once per session: node1 runs services, node2 and node3 compute."""
    kept = os.environ.get(_KEPT_CLUSTER)
    if kept:
        name = re.search(r"cluster_name: (\S+)", (Path(kept) / "hosts.yaml").read_text())
        assert name, f"{kept}/hosts.yaml has no cluster_name"
        yield RunningLab(name[1], Path(kept))
        return
    for running in create_lab(RunningLab(f"test{os.getpid()}-c", tmp_path_factory.mktemp("cluster")), "--torch"):
        share(request, running)
        done = running.apply(timeout_s=3000)
        assert done.returncode == 0, done.stdout + done.stderr
        yield running


@pytest.fixture
def cluster(applied_cluster: RunningLab) -> Iterator[RunningLab]:
    """The cluster for one test; afterwards every host is repaired."""
    yield applied_cluster
    applied_cluster.heal()


def create_lab(running: RunningLab, *options: str) -> Iterator[RunningLab]:
    """Create a lab and remove it afterwards; skip if this machine cannot run containers."""
    _remove_abandoned()
    done = run_cli("lab", "up", *options, "--name", running.name, "--dir", str(running.folder), timeout_s=1800)
    if done.returncode == _CANNOT and "\n  fix: " in done.stderr and "Traceback" not in done.stderr:
        pytest.skip(f"this machine cannot run the lab: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield running
    finally:
        remove_lab(running)


def remove_lab(running: RunningLab) -> None:
    """Remove a lab with all its files, if it exists."""
    run_cli("lab", "down", "--purge", "--name", running.name, "--dir", str(running.folder))


def _remove_abandoned() -> None:
    """Remove the labs of killed test sessions: their names contain the ID of a process that no longer exists."""
    argv = engine_argv()
    if shutil.which(argv[-1]) is None:
        return
    listed = subprocess.run([*argv, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, timeout=60, check=False)
    found = {(match[1], match[2] or "") for match in map(_OWN_NAME.match, listed.stdout.split()) if match}
    for number, suffix in found:
        if not Path(f"/proc/{number}").exists():
            name = f"test{number}{suffix}"
            run_cli("lab", "down", "--name", name, "--dir", _folder_of(name, listed.stdout.split()))


def _folder_of(lab: str, containers: list[str]) -> str:
    """Return the folder from which a lab was created; a label of its containers names it."""
    container = next(name for name in containers if name.startswith(f"primus-{lab}-node"))
    argv = [*engine_argv(), "inspect", "--format", '{{index .Config.Labels "primus.lab.folder"}}', container]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
