"""primus_bootstrap.launch.diagnose.analyze with a real snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.diagnose import analyze
from primus_bootstrap.launch.snapshot import run_snapshot
from tests.unit.launch_plans import plan, project

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_command_of_the_run_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the snapshot."""
    folder = project(tmp_path / "job")
    run_snapshot.take(plan(folder), folder / "A")
    analyze.main([str(folder / "A")])

    assert "command     primus-cli direct --output A --script train.py -- --config x.yaml\n" in capsys.readouterr().out
