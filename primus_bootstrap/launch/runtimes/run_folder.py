"""Making a run's folder, and saying in it which Slurm step the run is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.detect.render import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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


@contextmanager
def preparing(run_dir: Path) -> Iterator[None]:
    """Do what comes before a start; nothing is started where the folder cannot be written.

    Raises:
        PlanError: A full disk, a quota, missing rights.
    """
    try:
        yield
    except OSError as error:
        fix = "see that its disk has room (df -h, df -i) and that you may write there, or set --output to another folder"
        raise PlanError(f"the run cannot be prepared in {run_dir}: {error}", fix=fix) from error


def step_path(run_dir: Path) -> Path:
    """Return the file in which node 0 of a Slurm step writes which step it is, as JOB.STEP."""
    return run_dir / "logs" / "slurm-step"


def write_step(run_dir: Path, environment: Mapping[str, str]) -> None:
    """Write which Slurm step this is, for the one who started srun and may have to stop it."""
    step = f"{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}"
    files.bring_about(run_dir, {str(step_path(run_dir).relative_to(run_dir)): f"{step}\n"}, check=False)
