"""Save and restore the state of a run over all ranks, with asynchronous distributed checkpoints that are committed atomically.

A background thread writes the files, computes checksums and commits. It uses a separate process group.
"""

from __future__ import annotations

import os
import socket
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

from workloads.common.errors import StorageError
from workloads.common.torch_release import save_async
from workloads.train import checkpoint_folder as files
from workloads.train.lora import is_added

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from torch import nn
    from torch.optim import Optimizer

    from workloads.common.process_group import Group
    from workloads.train.settings import CheckpointSettings

_TRIAL_BYTES = 2**20


class Checkpoints:
    """The checkpoints of a run. All ranks must call every method together."""

    def __init__(self, folder: Path, settings: CheckpointSettings, group: Group) -> None:
        """Use `folder`, which all nodes share."""
        self.folder = folder
        self.last_step, self.failures, self.last_failure = 0, 0, ""
        self._settings, self._group = settings, group
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[str] | None = None
        self._writing_step = 0
        # Copies to pinned memory, which it reuses, and returns when the copy is complete. In torch 2.11, DefaultStager clears itself after
        # the first copy, so the second checkpoint fails.
        self._stager = BlockingAsyncStager(cache_staged_state_dict=group.device.type == "cuda")

    @property
    def state(self) -> str:
        """Return `writing`, `failed` or `idle`."""
        if self._writing is not None and not self._writing.done():
            return "writing"
        return "failed" if self.failures else "idle"

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint. Return when the state is copied, or, without `asynchronous`, when the checkpoint is complete."""
        self.wait()
        self.check()
        problem = self._begin(step)
        if problem:
            self._note(problem, step)
            return
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        written = save_async(state, files.partial_folder(self.folder, step), self._stager, self._group.background)
        self._writing_step = step
        self._writing = self._writer.submit(self._finish, written, files.Manifest(step, {}, facts))
        if not self._settings.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._writing is None:
            return
        problem, self._writing = self._writing.result(), None
        self._note(problem, self._writing_step)

    def poll(self) -> None:
        """Record the result of a checkpoint that has completed since; never waits."""
        if self._writing is not None and self._writing.done():
            self.wait()

    @property
    def exhausted(self) -> bool:
        """Whether more consecutive checkpoints have failed than allowed."""
        return self.failures > self._settings.failures_allowed

    def check(self) -> None:
        """Check the number of consecutive failures.

        Raises:
            StorageError: More consecutive checkpoints have failed than allowed.
        """
        if self.exhausted:
            raise StorageError(
                f"{self.failures} checkpoints in a row could not be written to {self.folder}: {self.last_failure}",
                fix="free space or repair the storage, then restart the run: it resumes from the newest complete checkpoint",
            )

    def close(self) -> None:
        """Stop the background thread."""
        self._writer.shutdown(wait=True)

    def _begin(self, step: int) -> str:
        problem = ""
        if self._group.is_first:
            try:
                files.begin(self.folder, step)
            except OSError as error:
                problem = str(error)
        problem = self._from_first(problem)
        if not problem and not files.partial_folder(self.folder, step).is_dir():
            problem = (
                f"rank {self._group.rank} does not see {files.partial_folder(self.folder, step)}: the folder is not shared by all nodes"
            )
        return self._first_of_all(problem)

    def _finish(self, written: Future[Any], manifest: files.Manifest) -> str:
        """Complete a checkpoint; return the problem, or an empty string, the same on every rank."""
        partial = files.partial_folder(self.folder, manifest.step)
        sums: dict[str, str] = {}
        try:
            written.result()
        except (CheckpointException, OSError, RuntimeError) as error:
            problem = _reason(error) + _trial(partial)
        else:
            problem, sums = _checksums(partial, self._group.rank)
        of_all: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(of_all, (problem, sums), group=self._group.background)
        problem = next((text for text, _ in of_all if text), "")
        if self._group.is_first:
            problem = problem or self._commit(
                files.Manifest(manifest.step, {k: v for _, part in of_all for k, v in part.items()}, manifest.facts)
            )
            if problem:
                files.remove_partial(self.folder, manifest.step)
        return self._from_first(problem)

    def _commit(self, manifest: files.Manifest) -> str:
        try:
            not_removed = files.commit(self.folder, manifest, keep=self._settings.keep)
        except OSError as error:
            return str(error)
        if not_removed:
            print(f"checkpoint: step {manifest.step} is complete; {not_removed}; the next checkpoint retries", flush=True)
        return ""

    def _note(self, problem: str, step: int) -> None:
        if not problem:
            self.last_step, self.failures, self.last_failure = step, 0, ""
            return
        self.failures, self.last_failure = self.failures + 1, f"step {step}: {problem}"
        if self._group.is_first:
            print(f"checkpoint: step {step} could not be written ({problem}); failure {self.failures} in a row", flush=True)

    def _from_first(self, text: str) -> str:
        box = [text]
        dist.broadcast_object_list(box, src=0, group=self._group.background)
        return box[0]

    def _first_of_all(self, problem: str) -> str:
        of_all: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(of_all, problem, group=self._group.background)
        return next((text for text in of_all if text), "")

    def newest_good(self) -> Path | None:
        """Return the newest checkpoint with correct checksums, or None. Rename damaged checkpoints.

        Raises:
            StorageError: The checkpoints cannot be read, or none of the existing ones is usable; starting over would lose the run.
        """
        while True:
            name, problem = self._newest()
            if problem:
                raise StorageError(
                    f"{self.folder}: {problem}",
                    fix="repair the storage or restore a copy; or set checkpoint.resume to never (start over) or to a checkpoint's path",
                )
            if not name:
                return None
            path = Path(name)
            damage = self.damage(path)
            if not damage:
                return path
            aside = self._from_first(str(files.set_aside(path)) if self._group.is_first else "")
            if self._group.is_first:
                print(f"checkpoint: {path} is damaged ({damage}); renamed to {aside}; trying the previous one", flush=True)

    def _newest(self) -> tuple[str, str]:
        """Return the path of the newest checkpoint, and the problem if there should be one. Both are empty if none was written."""
        name = problem = ""
        if self._group.is_first:
            try:
                candidates = files.complete_checkpoints(self.folder)
                name = str(candidates[0]) if candidates else ""
                unusable = [] if candidates else files.unusable(self.folder)
                problem = f"no checkpoint is usable, only {', '.join(unusable)} exist" if unusable else ""
            except OSError as error:
                problem = f"cannot be read: {error}"
        return self._from_first(name), self._from_first(problem)

    def were_resumed_from(self, path: str) -> bool:
        """Return whether the newest checkpoint was written by a run with this path in `checkpoint.resume`.

        If so, this is a restart of the same run, which continues from its own checkpoints instead of repeating the steps since the path.
        """
        answer = problem = ""
        if self._group.is_first:
            try:
                answer = "same" if files.newest_setting(self.folder, "checkpoint", "resume") == path else ""
            except (StorageError, OSError) as error:
                problem = str(error)
        problem = self._from_first(problem)
        if problem:
            raise StorageError(f"{self.folder}: {problem}", fix="mount the folder, readable for this user")
        return bool(self._from_first(answer))

    def damage(self, path: Path) -> str:
        """Check the files of a checkpoint, distributed over the ranks; return the problem, or an empty string.

        Raises:
            StorageError: A rank cannot read the files, so the state of the checkpoint is unknown.
        """
        problem = unreadable = ""
        try:
            problem = files.damage(path, files.read_manifest(path), part=self._group.rank, parts=self._group.world_size)
        except files.DamagedError as error:
            problem = error.what
        except (StorageError, OSError) as error:
            unreadable = f"rank {self._group.rank} on {socket.gethostname()} cannot read it: {error}"
        problem, unreadable = self._first_of_all(problem), self._first_of_all(unreadable)
        if unreadable:
            raise StorageError(
                f"{path}: {unreadable}",
                fix="mount the folder on every node, readable for this user, and give the path of a complete checkpoint, step-NNNNNNNN",
            )
        return problem

    def require_good(self, path: Path) -> None:
        """Check that a checkpoint is complete.

        Raises:
            StorageError: It is damaged or incomplete.
        """
        problem = self.damage(path)
        if problem:
            raise StorageError(f"{path}: {problem}", fix="give the path of a complete checkpoint, step-NNNNNNNN")

    def read(self, path: Path) -> files.Manifest:
        """Return the manifest of a checkpoint."""
        return files.read_manifest(path)

    def load(self, path: Path, model: nn.Module, optimizer: Optimizer) -> None:
        """Restore the whole state, on any number of ranks and under any layout.

        Optimizer options such as weight decay come from the settings. The groups that have them differ between layouts.
        """
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": model_state, "optimizer": {"state": optimizer_state["state"]}}
        load(state, storage_reader=FileSystemReader(path), process_group=self._group.background)
        moments = {"state": state["optimizer"]["state"], "param_groups": optimizer_state["param_groups"]}
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=moments)
        self.last_step = files.read_manifest(path).step

    def load_weights(self, path: Path, model: nn.Module) -> None:
        """Restore the weights only; additions of LoRA keep their values."""
        state = get_model_state_dict(model)
        stored = {"model": {name: value for name, value in state.items() if not is_added(name)}}
        load(stored, storage_reader=FileSystemReader(path), process_group=self._group.background)
        set_model_state_dict(model, {**state, **stored["model"]})


def _checksums(folder: Path, rank: int) -> tuple[str, dict[str, str]]:
    """Return a problem, and the checksums of the files that this rank wrote; rank 0 also wrote the metadata."""
    names = [path.name for path in folder.glob(f"__{rank}_*")] + ([".metadata"] if rank == 0 else [])
    try:
        return "", {name: files.checksum(folder / name) for name in names}
    except OSError as error:
        return str(error), {}


def _trial(folder: Path) -> str:
    """Write a small file after a failure, because torch's message does not report a full disk."""
    try:
        with (folder / f"trial-{os.getpid()}").open("wb") as file:
            file.write(bytes(_TRIAL_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return f"; writing a test file fails too: {error.strerror}"
    return ""


def _reason(error: BaseException) -> str:
    """Return the cause as one line. A CheckpointException contains one failure per rank, with its traceback."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(sorted(error.failures.items())))
        return f"rank {rank}: {traceback.format_exception_only(cause)[-1].strip()}"
    return traceback.format_exception_only(error)[-1].strip()
