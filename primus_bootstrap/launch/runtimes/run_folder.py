"""Create a run's folder and write the id of its Slurm step into it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.detect.render import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def make_run_folder(run_dir: Path) -> None:
    """Create the run folder and its logs folder.

    Raises:
        PlanError: They cannot be created.
    """
    try:
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "pass --output with a folder in which you may write"
        raise PlanError(f"the run folder {run_dir} cannot be created: {error}", fix=fix) from error


@contextmanager
def preparing(run_dir: Path) -> Iterator[None]:
    """Convert errors of the file system before the start into a PlanError.

    Raises:
        PlanError: The run folder cannot be written: a full disk, a quota, missing permissions.
    """
    try:
        yield
    except OSError as error:
        fix = "check free space (df -h, df -i) and your permissions, or pass --output with another folder"
        raise PlanError(f"the run cannot be prepared in {run_dir}: {error}", fix=fix) from error


def step_path(run_dir: Path) -> Path:
    """Return the file to which node 0 of a Slurm step writes the step's id, as JOB.STEP."""
    return run_dir / "logs" / "slurm-step"


def write_step(run_dir: Path, environment: Mapping[str, str]) -> None:
    """Write the id of this Slurm step; the process that started srun uses it to stop the step."""
    step = f"{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}"
    files.write_files(run_dir, {str(step_path(run_dir).relative_to(run_dir)): f"{step}\n"}, check=False)
