"""A lab of the tests' own: three real hosts, kept apart from the user's lab."""

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

_OWN_NAME = re.compile(r"primus-test(\d+)(-b)?-node")
# What primus-bootstrap exits with where this machine cannot run a lab at all.
_CANNOT = 3


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Bring up three hosts once for the session; skip, and say why, where this machine cannot run containers."""
    _remove_abandoned()
    running = RunningLab(f"test{os.getpid()}", tmp_path_factory.mktemp("lab"))
    done = run_cli("lab", "up", "--name", running.name, "--dir", str(running.folder), timeout_s=1800)
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
