"""Saving and restoring the state of a run, over all ranks: asynchronous distributed checkpoints that are complete or not there.

A background thread writes, adds up checksums and commits; it talks to the other ranks over a process group of its own.
"""

from __future__ import annotations

import os
import socket
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from workloads.common.errors import StorageError
from workloads.train import checkpoint_folder as files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.optim import Optimizer

    from workloads.common.process_group import Group
    from workloads.train.settings import CheckpointSettings

_TRIAL_BYTES = 2**20


class Checkpoints:
    """The checkpoints of a run. Every method is called by all ranks together."""

    def __init__(self, folder: Path, settings: CheckpointSettings, group: Group) -> None:
        """Write below `folder`, which all nodes share."""
        self.folder = folder
        self.last_step, self.failures, self.last_failure = 0, 0, ""
        self._settings, self._group = settings, group
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[str] | None = None
        self._writing_step = 0
        # Copies to pinned memory, which it keeps from one checkpoint to the next, and returns when the copy is complete. Not DefaultStager:
        # that of torch 2.11 clears itself after its first copy, and the second checkpoint fails.
        self._stager = BlockingAsyncStager(cache_staged_state_dict=group.device.type == "cuda")

    @property
    def state(self) -> str:
        """Return `writing`, `failed` or `idle`."""
        if self._writing is not None and not self._writing.done():
            return "writing"
        return "failed" if self.failures else "idle"

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; return when the state is copied, or with `asynchronous` off when it is complete."""
        self.wait()
        self.check()
        problem = self._begin(step)
        if problem:
            self._note(problem, step)
            return
        model_state, optimizer_state = get_state_dict(model, optimizer)
        written = async_save(
            {"model": model_state, "optimizer": optimizer_state},
            storage_writer=FileSystemWriter(files.partial_folder(self.folder, step)),
            process_group=self._group.background,
            async_stager=self._stager,
        )
        if not isinstance(written, Future):
            written = written.upload_completion
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
        """Take note of a checkpoint that has been written since; never waits."""
        if self._writing is not None and self._writing.done():
            self.wait()

    @property
    def exhausted(self) -> bool:
        """Return whether more checkpoints in a row have failed than are allowed."""
        return self.failures > self._settings.failures_allowed

    def check(self) -> None:
        """Stop the run where checkpoints cannot be written.

        Raises:
            StorageError: after more failures in a row than are allowed.
        """
        if self.exhausted:
            raise StorageError(
                f"{self.failures} checkpoints in a row could not be written to {self.folder}: {self.last_failure}",
                fix="free space or mend the storage, then start the run again: it resumes from the newest complete checkpoint",
            )

    def close(self) -> None:
        """End the writer."""
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
        """Return what went wrong, the same on every rank."""
        partial = files.partial_folder(self.folder, manifest.step)
        sums: dict[str, str] = {}
        try:
            written.result()
        except (CheckpointException, OSError, RuntimeError) as error:
            problem = _reason(error) + _trial(partial)
        else:
            problem, sums = _own_checksums(partial, self._group.rank)
        everyone: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(everyone, (problem, sums), group=self._group.background)
        problem = next((text for text, _ in everyone if text), "")
        if self._group.is_first:
            problem = problem or self._commit(
                files.Manifest(manifest.step, {k: v for _, part in everyone for k, v in part.items()}, manifest.facts)
            )
            if problem:
                files.remove_partial(self.folder, manifest.step)
        return self._from_first(problem)

    def _commit(self, manifest: files.Manifest) -> str:
        try:
            left = files.commit(self.folder, manifest, keep=self._settings.keep)
        except OSError as error:
            return str(error)
        if left:
            print(f"checkpoint: step {manifest.step} is complete; {left}; the next one tries again", flush=True)
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
        everyone: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(everyone, problem, group=self._group.background)
        return next((text for text in everyone if text), "")

    def newest_good(self) -> Path | None:
        """Return the newest checkpoint whose files have the right checksums; rename damaged ones on the way.

        Raises:
            StorageError: where checkpoints cannot be read, or none of those that there are may be used: starting over would lose the run.
        """
        while True:
            name, problem = self._newest()
            if problem:
                raise StorageError(
                    f"{self.folder}: {problem}",
                    fix="mend the storage or bring back a copy; or start over with checkpoint.resume=never, or from one by its path",
                )
            if not name:
                return None
            path = Path(name)
            damage = self.damage(path)
            if not damage:
                return path
            aside = self._from_first(str(files.set_aside(path)) if self._group.is_first else "")
            if self._group.is_first:
                print(f"checkpoint: {path} is damaged ({damage}); it is now {aside}; trying the one before", flush=True)

    def _newest(self) -> tuple[str, str]:
        """Return the path of the newest checkpoint, or why there is none though there should be; both are empty where none was written."""
        name = problem = ""
        if self._group.is_first:
            try:
                candidates = files.complete_checkpoints(self.folder)
                name = str(candidates[0]) if candidates else ""
                lost = [] if candidates else files.unusable(self.folder)
                problem = f"no usable checkpoint is left, only {', '.join(lost)}" if lost else ""
            except OSError as error:
                problem = f"cannot be read: {error}"
        return self._from_first(name), self._from_first(problem)

    def were_resumed_from(self, wanted: str) -> bool:
        """Return whether the newest checkpoint is of a run that was told to resume from this path, as this one is.

        Then it is the same run, started again after a failure: going back to the path each time would repeat the same steps for ever.
        """
        answer = problem = ""
        if self._group.is_first:
            try:
                answer = "same" if files.newest_setting(self.folder, "checkpoint", "resume") == wanted else ""
            except (StorageError, OSError) as error:
                problem = str(error)
        problem = self._from_first(problem)
        if problem:
            raise StorageError(f"{self.folder}: {problem}", fix="mount the folder of checkpoints, readable for this user")
        return bool(self._from_first(answer))

    def damage(self, path: Path) -> str:
        """Check the files of a checkpoint, each by one rank; return what is wrong, or an empty string.

        Raises:
            StorageError: where a rank cannot read them, which says nothing about the checkpoint.
        """
        problem = unread = ""
        try:
            problem = files.damage(path, files.read_manifest(path), part=self._group.rank, parts=self._group.world_size)
        except files.DamagedError as error:
            problem = error.what
        except (StorageError, OSError) as error:
            unread = f"rank {self._group.rank} on {socket.gethostname()} cannot read it: {error}"
        problem, unread = self._first_of_all(problem), self._first_of_all(unread)
        if unread:
            raise StorageError(
                f"{path}: {unread}",
                fix="mount the folder of checkpoints on every node, readable for this user, and name a complete checkpoint, step-NNNNNNNN",
            )
        return problem

    def require_good(self, path: Path) -> None:
        """Refuse a checkpoint that is not complete.

        Raises:
            StorageError: with what is wrong.
        """
        problem = self.damage(path)
        if problem:
            raise StorageError(f"{path}: {problem}", fix="name a complete checkpoint folder, step-NNNNNNNN")

    def read(self, path: Path) -> files.Manifest:
        """Return what a checkpoint says about itself."""
        return files.read_manifest(path)

    def load(self, path: Path, model: nn.Module, optimizer: Optimizer) -> None:
        """Restore the whole state, on any number of ranks; weight decay and the like are those of the settings, not of the checkpoint."""
        model_state, optimizer_state = get_state_dict(model, optimizer)
        wanted = deepcopy(optimizer_state["param_groups"])
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
        load(state, storage_reader=FileSystemReader(path), process_group=self._group.background)
        state["optimizer"]["param_groups"] = wanted
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.last_step = files.read_manifest(path).step

    def load_weights(self, path: Path, model: nn.Module) -> None:
        """Restore the weights alone."""
        state = {"model": get_model_state_dict(model)}
        load(state, storage_reader=FileSystemReader(path), process_group=self._group.background)
        set_model_state_dict(model, state["model"])


def _own_checksums(folder: Path, rank: int) -> tuple[str, dict[str, str]]:
    """Add up the files that this rank wrote; the first rank's are also the metadata."""
    names = [path.name for path in folder.glob(f"__{rank}_*")] + ([".metadata"] if rank == 0 else [])
    try:
        return "", {name: files.checksum(folder / name) for name in names}
    except OSError as error:
        return str(error), {}


def _trial(folder: Path) -> str:
    """Write a little by hand after a failure: torch's own message does not say that a disk is full."""
    try:
        with (folder / f"trial-{os.getpid()}").open("wb") as file:
            file.write(bytes(_TRIAL_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return f"; writing by hand fails, too: {error.strerror}"
    return ""


def _reason(error: BaseException) -> str:
    """Return the cause in a line: a CheckpointException holds one failure a rank, with its traceback."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(sorted(error.failures.items())))
        return f"rank {rank}: {traceback.format_exception_only(cause)[-1].strip()}"
    return traceback.format_exception_only(error)[-1].strip()
