"""TorchTitan's checkpoints as the launcher needs them: reported when they are complete, and chosen by checkpoint.resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchtitan.components.checkpoint import AsyncMode, CheckpointManager

from workloads.backends.common.checkpoint_marks import content_of
from workloads.backends.torchtitan.log_lines import saved_line
from workloads.common.errors import StorageError

_ABSENT = "none"  # a folder that does not exist below the one of the checkpoints


class Checkpoints(CheckpointManager):  # type: ignore[misc]  # TorchTitan is not installed where types are checked
    """TorchTitan's checkpoints."""

    folder: str  # of this run's checkpoints
    resume, at_end = "auto", True  # checkpoint.resume and checkpoint.at_end
    _unreported = 0  # the step of a checkpoint that is still being written

    @property
    def can_save(self) -> bool:
        """Whether this run writes checkpoints."""
        return bool(self.enable and not self.load_only)

    def save_and_stop(self, step: int) -> None:
        """Write a complete checkpoint now."""
        self.at_end = True
        self.save(step, last_step=True)

    def save(self, curr_step: int, last_step: bool = False) -> None:  # noqa: FBT001, FBT002 - TorchTitan's signature
        """Write a checkpoint if it is time to, and report those that are complete."""
        last_step = last_step and self.at_end
        if not self._should_save(curr_step, last_step):
            return
        self.write(curr_step, last_step)
        self._report(self._unreported)
        self._unreported = 0
        if last_step or self.async_mode == AsyncMode.DISABLED:
            self._report(curr_step)
        else:
            self._unreported = curr_step

    def write(self, curr_step: int, last_step: bool) -> None:  # noqa: FBT001 - as above
        """Write a checkpoint, or start to write it."""
        super().save(curr_step, last_step)

    def poll(self) -> None:
        """Report a checkpoint that was written in the background, once it is complete."""
        if self._unreported and self.save_future is not None and self.save_future.done():
            self.finish()

    def finish(self) -> None:
        """Wait for a checkpoint that is still being written."""
        if self._unreported:
            self._async_wait()
            self._report(self._unreported)
            self._unreported = 0

    @staticmethod
    def _report(step: int) -> None:
        if step:
            print(saved_line(step), flush=True)

    def load(self, step: int = -1) -> bool:
        """Load the newest complete checkpoint of this run, unless checkpoint.resume is never; otherwise the one of another run."""
        if not self.enable:
            return False
        folder = self.folder
        if self.resume == "never" or self._find_load_step() == -1:
            self.folder = str(Path(folder) / _ABSENT)  # TorchTitan looks for the other run's checkpoint only without this folder
            self.initial_load_path = self._other_run()
        try:
            return bool(super().load(step))
        finally:
            self.folder = folder

    def _other_run(self) -> str | None:
        """Return the folder of the other run's checkpoint: that of the mark, or the newest one in a folder of checkpoints.

        Raises:
            StorageError: There is none.
        """
        if not self.initial_load_path:
            return None
        path: Any = Path(self.initial_load_path)
        if content_of(path):
            path = path.parent / content_of(path)
        if not self.initial_load_in_hf and not (path / ".metadata").is_file():
            newest = self._find_load_step(str(path))
            if newest == -1:
                fix = "give the path of a folder step-N, or of the folder that contains it"
                raise StorageError(f"{path}: no complete checkpoint of TorchTitan", fix=fix)
            path = path / f"step-{newest}"
        return str(path)
