"""MaxText's checkpoints as the launcher needs them: when to write one, whether it is complete, and which one checkpoint.resume means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.backends.common.checkpoint_marks import content_of
from workloads.backends.maxtext import nodes
from workloads.backends.maxtext.log_lines import folder_name, saved_line
from workloads.common.errors import SettingsError, StorageError
from workloads.train.stop import StopRequest

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_clock import StepClock


class Checkpoints:
    """Replaces the functions of maxtext.common.checkpointing that decide where and when checkpoints are written."""

    def __init__(self, facts: RunFacts, folder: Path, clock: StepClock) -> None:
        """Take the folder of this run's checkpoints, and the clock that is told of each step."""
        self._facts, self._folder, self._clock = facts, folder, clock
        self._unreported = 0  # the step of a checkpoint that is still being written
        self._request: StopRequest | None = None
        self.stopped = False

    def arguments(self) -> list[str]:
        """Return the arguments that name the checkpoint of another run, if there is one to start with.

        Raises:
            StorageError: It is no complete checkpoint.
            SettingsError: The run must not resume, and its folder has checkpoints.
        """
        names = [path.name for path in self._folder.glob("*")] if self._folder.is_dir() else []
        own = sorted(int(name) + 1 for name in names if name.isdecimal())
        if self._facts.resume == "never" and own:
            fix = f"pass another folder with --output, or remove {self._folder}"
            raise SettingsError(
                f"checkpoint.resume is never, and {self._folder} has checkpoints of step {', '.join(map(str, own))}", fix=fix
            )
        if self._facts.resume not in ("auto", "never"):
            return [f"load_full_state_path={_items(self._facts.resume)}"]
        return [f"load_parameters_path={_items(self._facts.start_from)}"] if self._facts.start_from else []

    def install(self) -> None:
        """Replace MaxText's functions."""
        from maxtext.common import checkpointing  # noqa: PLC0415 - only the interpreter of the backend has it

        self._checkpointing: Any = checkpointing
        self._create = checkpointing.create_orbax_checkpoint_manager
        checkpointing.create_orbax_checkpoint_manager = self._manager
        checkpointing.maybe_save_checkpoint = self._after_step

    def _manager(self, _folder: str, enabled: bool, *words: Any, **options: Any) -> Any:  # noqa: FBT001 - MaxText's signature
        if enabled:
            self._folder.mkdir(parents=True, exist_ok=True)
            if nodes.count() == 1:  # on several nodes, JAX's coordinator tells all of them at which step to stop
                self._request = StopRequest()
        return self._create(str(self._folder), enabled, *words, **options)

    def _after_step(self, manager: Any, state: Any, config: Any, data: Any, step: int | None = None) -> None:
        """Write a checkpoint if it is time to, or after SIGTERM, which ends the run after this step. MaxText counts steps from 0."""
        if step is None:
            return
        if manager is not None:
            self._clock.timed("checkpoint", self._save_if_due)(manager, state, config, data, step)
        self._clock.begin(step + 2)  # MaxText has started the next step before the result of this one is known

    def _save_if_due(self, manager: Any, state: Any, config: Any, data: Any, step: int) -> None:
        done = step + 1
        last, stop = done == config.steps, self._must_stop(manager, step)
        self._report_complete()
        if stop or (last and self._facts.settings["checkpoint.at_end"]) or done % config.checkpoint_period == 0:
            self.finish(manager)
            if self._checkpointing.save_checkpoint(manager, step, state, config, data, force=True):
                self._unreported = done
        if stop or last:
            self.finish(manager)
        self.stopped = stop and not last

    def _must_stop(self, manager: Any, step: int) -> bool:
        if self._request is not None:
            return self._request.received
        return bool(self._checkpointing.reached_preemption(manager, step))

    def finish(self, manager: Any) -> None:
        """Wait for a checkpoint that is still being written."""
        if self._unreported:
            self._checkpointing.wait_until_finished(manager)
            self._report_complete()

    def _report_complete(self) -> None:
        """Report a checkpoint that Orbax has completed: it writes this file last."""
        if self._unreported and (self._folder / folder_name(self._unreported) / "commit_success.txt").is_file():
            print(saved_line(self._unreported, folder_name(self._unreported)), flush=True)
            self._unreported = 0


def _items(stated: str) -> str:
    """Return the folder of the model in a checkpoint: that of a mark, the newest one in a folder of checkpoints, or the stated one.

    Raises:
        StorageError: There is none.
    """
    path = Path(stated)
    if content_of(path):
        path = path.parent / content_of(path)
    elif path.is_dir() and not (path / "items").is_dir() and path.name != "items":
        steps = [int(item.name) for item in path.iterdir() if item.name.isdecimal()]
        path = path / str(max(steps)) if steps else path
    found = path if path.name == "items" else path / "items"
    if not found.is_dir():
        fix = "give the path of a folder step-N, or of the folder that contains it"
        raise StorageError(f"{stated}: no complete checkpoint of MaxText", fix=fix)
    return str(found)
