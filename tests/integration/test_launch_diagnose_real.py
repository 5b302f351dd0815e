"""primus_bootstrap.launch.diagnose with the kernel log of this host."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose import diagnosis, kernel_log
from tests.unit.test_launch_diagnose import sample

if TYPE_CHECKING:
    from pathlib import Path


def test_after_a_failure_the_kernel_log_and_the_diagnosis_are_saved(tmp_path: Path) -> None:
    """A kernel log that cannot be read is saved with its problem."""
    sample("disk_full", tmp_path)
    found = diagnosis.after_failure(tmp_path, 2, time.time() - 60, "gpu003")
    saved = json.loads((tmp_path / "failure.json").read_text())
    log = next(log for log in kernel_log.read_all(tmp_path) if log.node == "gpu003")

    assert saved == json.loads(json.dumps(found.to_json()))
    assert saved["cause"]["name"] == "disk_full"
    assert all(at > time.time() - 120 for at, _ in log.lines)
