"""The program `attempt` in a pod: rank and node come from the environment, rank 0's address from the shared storage."""

from __future__ import annotations

import json
import os
import pwd
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.watch import attempt
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

POD = {"PRIMUS_POD_NODE": "gpu1", "PRIMUS_POD_IP": "10.1.0.4", "PRIMUS_POD_NAME": "a-000000-1-r0", "JOB_COMPLETION_INDEX": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """Create a job on two nodes whose first attempt has lost its lease."""
    job = {
        "schema": "primus.job/1",
        "id": "a-000000",
        "name": "a",
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "target": "kubernetes",
        "nodes": 2,
        "words": ["x"],
        "policy": {"lease_s": 5},
        "kubernetes": {"image": "a:1", "namespace": "jobs"},
    }
    made, _ = folders.create(tmp_path, json.dumps(job))
    states.save(made.state_file, states.State("a-000000", phase=states.STARTING, attempt=1, attempts=(states.Attempt(1),)))
    return made


def test_a_pod_without_its_environment_is_refused(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a rank that the job does not have."""
    with pytest.raises(PlanError, match="this is not the pod of rank 0"):
        attempt.run(folder, 1, 0)
    for name, value in {**POD, "JOB_COMPLETION_INDEX": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match="this is not the pod of rank 2"):
        attempt.run(folder, 1, None)


def test_every_rank_gets_the_same_address_and_port(folder: JobFolder) -> None:
    """The address is from the record of rank 0."""
    state = folder.state()
    assert state is not None
    words = [attempt.launcher_words(folder.job(), state, folder, rank, "10.1.0.4") for rank in (0, 1)]
    shape = [[word for word in each if word.startswith(("--nnodes", "--master"))] for each in words]

    assert shape[0] == shape[1]
    assert shape[0][:2] == ["--nnodes=2", "--master-addr=10.1.0.4"]
