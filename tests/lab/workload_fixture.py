"""Fixtures for training jobs: a lab of five hosts with torch, one of them a spare."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.torch_folder import TARGET
from tests.lab.lab_fixture import create_lab, share
from tests.lab.lab_rig import RunningLab
from tests.lab.workload_rig import Training

if TYPE_CHECKING:
    from collections.abc import Iterator

# A lab that is up already, by its folder, to be used and left as it is: for writing tests.
_KEPT = "PRIMUS_TEST_TRAINING"
COMPUTE = ("node2", "node3", "node4", "node5")
SPARE = "node5"
VENV = TARGET


@pytest.fixture(scope="session")
def trained_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create node1 for services and four compute hosts, and apply, once per session."""
    kept = os.environ.get(_KEPT)
    if kept:
        name = re.search(r"cluster_name: (\S+)", (Path(kept) / "hosts.yaml").read_text())
        assert name, f"{kept}/hosts.yaml has no cluster_name"
        yield RunningLab(name[1], Path(kept))
        return
    running = RunningLab(f"test{os.getpid()}-w", tmp_path_factory.mktemp("training"))
    for lab in create_lab(running, "--core", "--nodes", "5", "--torch"):
        share(request, lab)
        _settle(lab)
        done = lab.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab


@pytest.fixture
def training(trained_cluster: RunningLab) -> Iterator[Training]:
    """The cluster without a running job; afterwards every host is repaired."""
    found = Training(trained_cluster)
    found.cancel_all()
    yield found
    trained_cluster.heal()
    found.cancel_all()


@pytest.fixture(scope="session")
def undisturbed(trained_cluster: RunningLab) -> dict[int, float]:
    """Return the losses of an uninterrupted run of the same job."""
    found = Training(trained_cluster)
    job = found.submit("direct")
    found.finish(job)
    return found.losses(job)


def _settle(lab: RunningLab) -> None:
    """Set the jobs' user and the spare host in hosts.yaml."""
    text = lab.hosts_file.read_text()
    text = text.replace("  hosts:\n", "    workload_user: ada\n\n  hosts:\n", 1)
    text = text.replace("    workload_node:\n", f"    spare:\n      hosts:\n        {SPARE}:\n    workload_node:\n", 1)
    lab.hosts_file.write_text(text)
