"""Post-train a model with TRL: `torchrun … posttrain.py --run FILE -- JOB`; primus-cli writes these files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.common.checkpoint_marks import checkpoint_folder
from workloads.backends.common.program import require_version
from workloads.backends.common.run_facts import read_run_facts
from workloads.backends.common.step_clock import StepClock
from workloads.backends.common.step_writer import Device, StepWriter, device_of
from workloads.backends.trl.job import read_job
from workloads.common.errors import STOPPED_EARLY, SettingsError, WorkloadError
from workloads.train.stop import StopRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.backends.common.run_facts import RunFacts

_PROGRAM, _USAGE = "posttrain", "posttrain.py --run FILE -- JOB"


def main(argv: Sequence[str]) -> int:
    """Post-train; return the exit code. Other errors than those of the workloads are raised, for the traceback in the log."""
    clock: StepClock | None = None
    exit_code = 1
    stop = StopRequest()
    try:
        if len(argv) != 4 or argv[0] != "--run" or argv[2] != "--":
            raise SettingsError("wrong arguments", fix=_USAGE)
        facts = read_run_facts(Path(argv[1]))
        require_version(facts)
        folder = Path(os.environ.get("RUN_DIR") or Path(argv[1]).parent)
        clock = StepClock(_PROGRAM, facts.settings, folder)
        clock.start()
        exit_code = STOPPED_EARLY if _train(facts, folder, Path(argv[3]), clock, stop) else 0
    except WorkloadError as error:
        rank = os.environ.get("RANK", "0")
        print(f"{_PROGRAM}: rank {rank}: {error.what}\n  fix: {error.fix}", file=sys.stderr, flush=True)
        exit_code = error.exit_code
    finally:
        if clock is not None:
            clock.leave(exit_code)
    return exit_code


def _train(facts: RunFacts, folder: Path, job_file: Path, clock: StepClock, stop: StopRequest) -> bool:
    """Train; return whether the run stopped early."""
    from workloads.backends.trl import trainer  # noqa: PLC0415 - takes a while, and only the interpreter of the backend has its imports
    from workloads.backends.trl.reporter import Reporter  # noqa: PLC0415 - the same

    job = read_job(job_file)
    checkpoints = checkpoint_folder(folder, facts.checkpoint_folder)
    run = trainer.Run(job, folder, checkpoints)
    run.load()
    facts = run.facts(facts)
    reporter = Reporter(job, facts, checkpoints, clock, stop)
    writer = StepWriter(folder, facts, lambda: _device(cpu=trainer.on_cpu(job), precision=facts.precision)) if trainer.is_first() else None
    reporter.writer = writer
    outcome = ""
    try:
        stopped_early = run.train(facts, reporter, clock.timed)
        outcome = "stopped early" if stopped_early else "done"
    finally:
        if writer is not None:
            writer.close(outcome)
    trainer.close()
    return stopped_early


def _device(*, cpu: bool, precision: str) -> Device:
    import torch  # noqa: PLC0415 - takes a while

    from workloads.common import device as devices  # noqa: PLC0415 - imports torch

    device: Any = torch.device("cpu" if cpu else "cuda")
    return device_of(devices.device_name(device), devices.compute_units(device), precision, lambda: devices.peak_memory_gib(device))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
