"""primus_bootstrap.launch.watch.attempt: a node's launcher runs while the attempt has its lease."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch.classification import NOT_ITS_TURN
from tests.unit.test_watch_attempt import folder as folder
from tests.unit.test_watch_attempt import launcher as launcher
from tests.unit.test_watch_attempt import starting

if TYPE_CHECKING:
    import subprocess

    from primus_bootstrap.launch.watch.job_folder import JobFolder


def test_a_launcher_ends_at_once_when_its_lease_is_revoked(folder: JobFolder, launcher: subprocess.Popen[bytes]) -> None:
    """With its ranks; the record has the reason."""
    states.save(folder.state_file, replace(starting(), revoked=True))

    assert launcher.wait(10) == NOT_ITS_TURN
    (record,) = node_record.read_all(folder.attempt(1)).values()
    assert (record.exit_code, record.note) == (NOT_ITS_TURN, "the lease of attempt 1 was revoked (newest attempt: 1)")


def test_a_launcher_ends_when_its_lease_cannot_be_read(folder: JobFolder, launcher: subprocess.Popen[bytes]) -> None:
    """The node has lost its storage."""
    began = time.monotonic()
    folder.state_file.rename(folder.path / "away.json")

    assert launcher.wait(20) == NOT_ITS_TURN
    assert 4 <= time.monotonic() - began <= 10
