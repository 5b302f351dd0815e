"""primus_bootstrap.cli.workload_view: jobs as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.cli import workload_view
from primus_bootstrap.fleet.jobs import JobStatus

NOTHING: dict[str, Any] = {"hosts": (), "excluded": (), "events": (), "since": 0.0, "updated": 0.0, "step": None, "checkpoint": None}
JOB = {"name": "try", "user": "ada", "target": "direct", "phase": "running", "reason": "", "fix": "", "stale": False, **NOTHING}


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [(None, None, "none"), (None, 212, "up to 212"), (201, 212, "201 to 212"), (0, 0, "0 to 0")],
)
def test_the_newest_step_may_be_known_before_the_first(
    first: int | None, last: int | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The attempt shows only the steps that are known."""
    attempt = {"attempt": 1, "first_step": first, "last_step": last}
    workload_view.print_job(JobStatus(id="try-0a1b2c", attempt=1, restarts=0, attempts=(attempt,), **JOB), Path("hosts.yaml"))

    assert shown in capsys.readouterr().out.splitlines()[-1]
