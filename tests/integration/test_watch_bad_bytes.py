"""primus-watch with programs that print invalid UTF-8."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import observation as observations
from primus_bootstrap.launch.watch.broker_client import NoAnswerError
from primus_bootstrap.launch.watch.job_folder import JobFolder
from primus_bootstrap.launch.watch.job_spec import Job
from primus_bootstrap.launch.watch.ssh import Channel, Ssh
from primus_bootstrap.launch.watch.targets.slurm import SlurmTarget

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folder of commands that is first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    """Write a command."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def target(tmp_path: Path) -> SlurmTarget:
    """Return the target of a job."""
    job = Job("a-000000", "a", pwd.getpwuid(os.geteuid()).pw_name, "slurm", 1, ("train",))
    return SlurmTarget(job, JobFolder(tmp_path))


def test_a_node_name_with_an_invalid_byte_from_slurm(say: Path, tmp_path: Path) -> None:
    """The other nodes are candidates."""
    program(say, "sinfo", r"printf 'n1|gpu*|idle\nn\377|gpu*|idle\n'")

    found = target(tmp_path).candidates()

    assert [each.host.name for each in found.hosts] == ["n1", "n\N{REPLACEMENT CHARACTER}"]


def test_an_error_with_an_invalid_byte_from_slurm(say: Path, tmp_path: Path) -> None:
    """The controller counts as silent."""
    for name in ("squeue", "sacct"):
        program(say, name, r"printf 'error \377\n' >&2; exit 1")

    found = target(tmp_path).observe(states.State("a-000000", states.RUNNING, attempt=1))

    assert found.status == observations.SILENT
    assert "error \N{REPLACEMENT CHARACTER}" in found.why


@pytest.mark.parametrize("answer", [r"printf '\377'", r"printf '{\"ok\": true'", "printf '%0100000d' 0 | tr 0 '['"])
def test_an_answer_of_a_host_that_is_not_json(say: Path, answer: str) -> None:
    """It counts as no answer."""
    program(say, "ssh", answer)

    with pytest.raises(NoAnswerError, match="ssh ended with exit code 0"):
        Channel(Ssh("primus", "/key", "/hosts")).ask("10.0.0.1", 22, {}, timeout_s=60)
