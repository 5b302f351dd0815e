"""Making a run's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path


def make_run_folder(run_dir: Path) -> None:
    """Make the folders that every run has.

    Raises:
        PlanError: They cannot be made.
    """
    try:
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"the run folder {run_dir} cannot be made: {error}", fix="set --output to a folder that can be written") from error
