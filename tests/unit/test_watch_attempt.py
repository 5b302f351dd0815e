"""primus_bootstrap.launch.watch.attempt: a node's launcher runs while the attempt has its lease."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.watch import attempt, node_record
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch.attempt import Lease, launcher_words
from primus_bootstrap.launch.watch.classification import NOT_ITS_TURN
from primus_bootstrap.launch.watch.job_spec import Host
from primus_bootstrap.launch.watch.node_record import NodeRecord
from tests.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.watch.job_folder import JobFolder
    from primus_bootstrap.launch.watch.job_state import State

ROOT = Path(__file__).resolve().parents[2]
RECORD = NodeRecord(0, "h1", "gpu001", "boot", "", 5.0)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """Create a job on one node that only sleeps, and whose first attempt is starting."""
    (tmp_path / "wait.py").write_text("import time; print('waits', flush=True); time.sleep(300)")
    job = {
        "schema": "primus.job/1",
        "id": "a-000000",
        "name": "a",
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "target": "direct",
        "nodes": 1,
        "processes_per_node": 1,
        "words": ["x"],
        "options": ["--single", f"--script={tmp_path}/wait.py"],
        "policy": {"lease_s": 5},
        "direct": {"hosts": [{"name": "h1", "address": "127.0.0.1"}], "ssh": {"identity": "/k", "known_hosts": "/k"}},
    }
    made, _ = folders.create(tmp_path, json.dumps(job))
    states.save(made.state_file, starting())
    return made


def starting() -> State:
    """Return the state of an attempt that is starting."""
    return states.State("a-000000", phase=states.STARTING, attempt=1, hosts=(Host("h1", "127.0.0.1"),), attempts=(states.Attempt(1),))


@pytest.fixture
def launcher(folder: JobFolder) -> Iterator[subprocess.Popen[bytes]]:
    """Start a launcher."""
    code = "import sys; from primus_bootstrap.launch.watch.attempt import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "--folder", str(folder.path), "--attempt", "1", "--rank", "0"]
    child = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)})
    log = folder.run / "logs" / "rank-00000.log"
    until(lambda: log.exists() and "waits" in log.read_text())
    yield child
    if child.poll() is None:
        child.kill()
        child.wait(LIMIT_S)


def test_a_launcher_without_a_lease_does_not_start(folder: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Another attempt has the lease, or this one has already run."""
    states.save(folder.state_file, replace(starting(), attempt=2))
    late = attempt.run(folder, 1, 0)
    states.save(folder.state_file, starting())
    assert node_record.claim(folder.attempt(1), RECORD) == ""
    twice = attempt.run(folder, 1, 0)

    assert (late, twice) == (NOT_ITS_TURN, NOT_ITS_TURN)
    said = capsys.readouterr().err
    assert "attempt 1 has no lease" in said
    assert "attempt 1 was already started, by rank 0 of an earlier start" in said


def test_a_missing_or_invalid_state_does_not_end_the_launcher_at_once(folder: JobFolder) -> None:
    """The last valid state counts until the time limit."""
    lease = Lease(folder, 1, 5.0)
    folder.state_file.unlink()
    lease.look()
    missing = lease.problem
    folder.state_file.write_text("{")
    lease.look()

    assert (missing, lease.problem) == ("", "")


def test_the_first_slurm_job_owns_the_attempt(tmp_path: Path) -> None:
    """A job that was started or submitted twice runs once."""
    first = [node_record.claim(tmp_path, replace(RECORD, rank=rank, target_id="41")) for rank in (0, 1)]
    second = [node_record.claim(tmp_path, replace(RECORD, rank=rank, target_id="42")) for rank in (0, 1, 2)]
    node_record.close(tmp_path, replace(RECORD, rank=1, target_id="41"), ended=9.0, exit_code=75)

    assert first == ["", ""]
    assert second == ["Slurm job 41"] * 3
    assert [(record.rank, record.exit_code) for record in node_record.read_all(tmp_path).values()] == [(0, None), (1, 75)]


def test_the_launcher_is_primus_cli_direct_with_the_options_of_the_attempt(folder: JobFolder) -> None:
    """Only the rank differs between nodes, and the port between attempts."""
    job = replace(folder.job(), nodes=2, words=("train", "pretrain"), options=("--venv=/opt/train",))
    hosts = (Host("h1", "10.0.0.1"), Host("h2", "10.0.0.2"))
    one, two = (launcher_words(job, replace(starting(), hosts=hosts, attempt=number), folder, 1, "10.0.0.1") for number in (1, 2))
    at = one.index("direct")

    assert one[at - 1 : at + 4] == (f"--output={folder.run}", "direct", "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1")
    assert one[at + 5 :] == ("--nproc=1", "--grace=120", "--venv=/opt/train", "--", "train", "pretrain")
    assert one[at + 4] != two[at + 4]
