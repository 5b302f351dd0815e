"""The main function that the programs of all backends share: facts of the run, version check, steps, checkpoints, exit code.

    pretrain.py --run FILE -- ARGUMENTS OF THE BACKEND

A backend gives a `Training`: what it prints for a step and for a checkpoint, and a function that trains.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.backends.common.checkpoint_marks import checkpoint_folder, mark
from workloads.backends.common.output_tee import read_lines
from workloads.backends.common.run_facts import read_run_facts
from workloads.backends.common.step_clock import StepClock
from workloads.backends.common.step_writer import StepWriter
from workloads.common.errors import STOPPED_EARLY, SettingsError, WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_writer import Device, Step

_USAGE = "pretrain.py --run FILE -- ARGUMENTS"


@dataclass(frozen=True, slots=True)
class Training:
    """What a backend gives.

    `train` gets the facts, the folder of the checkpoints and the arguments; it returns True if the run stopped early, with a checkpoint.
    `read_step` returns the step of a printed line. `read_checkpoint` returns step and folder of a checkpoint that the line reports
    as written. `use_clock` gets the clock of the steps before `train`, on every rank; without it, steps have no time limit.
    """

    train: Callable[[RunFacts, Path, list[str]], bool]
    read_step: Callable[[str], Step | None]
    read_checkpoint: Callable[[str], tuple[int, str] | None]
    device: Callable[[str], Device]  # gets the precision
    use_clock: Callable[[StepClock], None] | None = None


class _Run:
    """One rank of a run."""

    def __init__(self, program: str, training: Training, facts: RunFacts, folder: Path) -> None:
        self.training, self.facts = training, facts
        self.clock = StepClock(program, facts.settings, folder)
        self.checkpoints = checkpoint_folder(folder, facts.checkpoint_folder)
        self.writer = StepWriter(folder, facts, lambda: training.device(facts.precision))
        self.failure: WorkloadError | None = None

    def read(self, line: str) -> None:
        """Record the step or the checkpoint of a printed line. An error ends the run later: a print must not raise it in any thread."""
        try:
            step = self.training.read_step(line)
            if step is not None:
                self.writer.write(step)
            written = self.training.read_checkpoint(line)
            if written is not None:
                mark(self.checkpoints, written[0], backend=self.facts.backend, content=written[1], keep=self.facts.keep)
        except WorkloadError as error:
            if self.failure is None:
                self.failure = error
                self.clock.fail(error)
                print(f"{error.what}\n  fix: {error.fix}", file=sys.__stderr__, flush=True)

    def train(self, arguments: list[str]) -> bool:
        if self.training.use_clock is not None:
            self.clock.start()
            self.training.use_clock(self.clock)
        with read_lines(self.read):
            return self.training.train(self.facts, self.checkpoints, arguments)


def main(program: str, training: Training, argv: Sequence[str]) -> int:
    """Train with a backend; return the exit code. Other errors than those of the workloads are raised, for the traceback in the log."""
    run: _Run | None = None
    exit_code = 1
    try:
        facts, folder, arguments = _parse(argv)
        require_version(facts)
        run = _Run(program, training, facts, folder)
        exit_code = _train(run, arguments)
    except WorkloadError as error:
        rank = os.environ.get("RANK", "0")
        print(f"{program}: rank {rank}: {error.what}\n  fix: {error.fix}", file=sys.stderr, flush=True)
        exit_code = error.exit_code
    finally:
        if run is not None:
            run.clock.leave(exit_code)
    return exit_code


def _train(run: _Run, arguments: list[str]) -> int:
    outcome = ""
    try:
        stopped_early = run.train(arguments)
        if run.failure is not None:
            raise run.failure
        outcome = "stopped early" if stopped_early else "done"
    finally:
        run.writer.close(outcome)
    return STOPPED_EARLY if stopped_early else 0


def _parse(argv: Sequence[str]) -> tuple[RunFacts, Path, list[str]]:
    words = list(argv)
    if len(words) < 3 or words[0] != "--run" or words[2] != "--":
        raise SettingsError("wrong arguments", fix=_USAGE)
    path = Path(words[1])
    return read_run_facts(path), Path(os.environ.get("RUN_DIR") or path.parent), words[3:]


def require_version(facts: RunFacts) -> None:
    """Check that this interpreter has the pinned version of the backend.

    Raises:
        SettingsError: It has another one, or none.
    """
    try:
        found = metadata.version(facts.package)
    except metadata.PackageNotFoundError:
        found = ""
    if found != facts.version:
        what = f"{sys.executable} has {facts.package} {found}" if found else f"{sys.executable} has no {facts.package}"
        fix = f"primus-cli backend install {facts.backend}, or pass --python with an interpreter that has {facts.package} {facts.version}"
        raise SettingsError(f"{what}; the settings are those of version {facts.version}", fix=fix)
