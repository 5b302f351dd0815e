"""The first failing rank and its cause, from the files of a run. Samples: tests/data/failures/."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose import diagnosis, kernel_log
from tests.unit.test_launch_diagnose import sample

if TYPE_CHECKING:
    from pathlib import Path


def test_after_a_failure_the_kernel_log_and_the_diagnosis_are_kept(tmp_path: Path) -> None:
    """Somebody who was not there can read it later; a kernel log that cannot be read is kept as such."""
    sample("disk_full", tmp_path)
    found = diagnosis.after_failure(tmp_path, 2, time.time() - 60, "gpu003")
    kept = json.loads((tmp_path / "failure.json").read_text())
    log = next(log for log in kernel_log.read_all(tmp_path) if log.node == "gpu003")

    assert kept == json.loads(json.dumps(found.to_json()))
    assert kept["cause"]["name"] == "disk_full"
    assert all(at > time.time() - 120 for at, _ in log.lines)
