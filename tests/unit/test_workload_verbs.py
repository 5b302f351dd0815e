"""The log of a job, for the verb `workload logs`."""

from __future__ import annotations

import json
import os
import pwd
import time
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import log_view

if TYPE_CHECKING:
    from pathlib import Path

ID = "try-0a1b2c"
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create the folder of all jobs."""
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.fixture
def job(root: Path) -> folders.JobFolder:
    """Create a job without a watcher."""
    about = {"schema": "primus.job/1", "id": ID, "name": "try", "user": ME, "target": "slurm"}
    document = {**about, "nodes": 1, "words": ["train", "pretrain"], "slurm": {}}
    return folders.create(root, json.dumps(document))[0]


def test_following_a_log_continues_through_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new file of the same name is read from its start. It ends with the job."""
    folder = folders.JobFolder(tmp_path)
    log = folder.run / "logs" / "rank-00000.log"
    log.parent.mkdir(parents=True)
    log.write_text("zero\nfirst\n")

    def restart() -> None:
        log.rename(tmp_path / "aside.log")
        log.write_text("second\n")

    def end() -> None:
        with log.open("ab") as file:
            file.write(b"\xff third\n")
        states.save(folder.state_file, states.State(ID, phase=states.DONE))
        monkeypatch.setattr(log_view, "_LOOK_EVERY_S", 0.0)

    steps = iter([restart, end])
    monkeypatch.setattr(time, "sleep", lambda _: next(steps, lambda: None)())
    assert log_view.show(folder, 0, lines=1, follow=True) == 0

    assert capsys.readouterr().out == "first\nsecond\n\ufffd third\n"


def test_a_log_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    """Root must not follow a symbolic link, or wait for a named pipe."""
    folder = folders.JobFolder(tmp_path)
    log = folder.run / "logs" / "rank-00000.log"
    log.parent.mkdir(parents=True)
    with pytest.raises(PrimusError, match="rank 0 has written nothing yet"):
        log_view.show(folder, 0, lines=1, follow=False)
    os.mkfifo(log)
    with pytest.raises(PrimusError, match="is a named pipe, not a regular file"):
        log_view.show(folder, 0, lines=1, follow=False)
    log.unlink()
    log.symlink_to("/etc/hostname")
    with pytest.raises(PrimusError, match="cannot be read"):
        log_view.show(folder, 0, lines=1, follow=False)
