"""Fixtures for training jobs: a lab of five hosts with this machine's torch, one of them a spare."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_fixture import create_lab, share
from tests.lab.lab_rig import RunningLab
from tests.lab.workload_rig import Training

if TYPE_CHECKING:
    from collections.abc import Iterator

# A lab that is up already, by its folder, to be used and left as it is: for writing tests.
_KEPT = "PRIMUS_TEST_TRAINING"
COMPUTE = ("node2", "node3", "node4", "node5")
SPARE = "node5"
VENV = "/opt/train"
# On each host: the system's Python, with the packages of this machine.
MAKE_VENV = f"""
mkdir -p {VENV}/bin
ln -sfn /usr/bin/python3 {VENV}/bin/python
ln -sfn /usr/bin/python3 {VENV}/bin/python3
printf 'home = /usr/bin\\ninclude-system-site-packages = false\\n' > {VENV}/pyvenv.cfg
{VENV}/bin/python -c 'import torch, numpy, yaml'
"""


@pytest.fixture(scope="session")
def trained_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create node1 for services and four compute hosts, and apply, once per session."""
    kept = os.environ.get(_KEPT)
    if kept:
        name = re.search(r"cluster_name: (\S+)", (Path(kept) / "hosts.yaml").read_text())
        assert name, f"{kept}/hosts.yaml has no cluster_name"
        yield RunningLab(name[1], Path(kept))
        return
    options = torch_mounted()
    running = RunningLab(f"test{os.getpid()}-w", tmp_path_factory.mktemp("training"))
    for lab in create_lab(running, "--core", "--nodes", "5", *options):
        share(request, lab)
        _settle(lab)
        done = lab.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        for node in COMPUTE:
            lab.sh(node, MAKE_VENV, timeout_s=300)
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


def torch_mounted() -> tuple[str, ...]:
    """Return the options of `lab up` for this machine's torch; skip if hosts cannot use it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed here: pip install '.[workloads]'")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the hosts of the lab have Python 3.11, and torch is installed here for another one")
    target = f"{VENV}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    return "--release", "bookworm", "--mount", f"{Path(spec.origin).parents[1]}:{target}"


def _settle(lab: RunningLab) -> None:
    """Set the jobs' user, the Python with torch, and the spare host in hosts.yaml."""
    text = lab.hosts_file.read_text()
    text = text.replace("  hosts:\n", f"    workload_user: ada\n    workload_venv: {VENV}\n\n  hosts:\n", 1)
    text = text.replace("    workload_node:\n", f"    spare:\n      hosts:\n        {SPARE}:\n    workload_node:\n", 1)
    lab.hosts_file.write_text(text)
