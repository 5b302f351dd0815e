"""Train for a few steps, with a preset and the parallelism that a job will use: tokens a second, and whether the loss goes down.

    torchrun … workloads/bench/trial.py --preset llama-3.1-8b --strategy fsdp --steps 20

The trainer itself runs (workloads/train/pretrain.py, a process of its own for each rank), on the preset's data, without checkpoints and
with a warm-up of the learning rate that is over at once. The result is wrong where a loss is not finite, or where the mean of the last
quarter of the steps is not below that of the first.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # Started by path: Python put this folder in front, whose names are no modules of their own; the root is wanted.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.bench._child import run_child
from workloads.bench._options import DEVICE, TIMEOUT_S
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.common.errors import NotFiniteError, SettingsError, WorkloadError
from workloads.common.process_group import own_rank, world_size
from workloads.train.check_settings import check_settings
from workloads.train.load_settings import load_settings

if TYPE_CHECKING:
    import subprocess

    from workloads.common.results import Sizes

_PRETRAIN = Path(__file__).resolve().parents[1] / "train" / "pretrain.py"
_LEAST_STEPS = 8
# As in the trainer's own result: the first steps compile, warm caches and grow pools.
_WARM_UP_STEPS = 3
_TO_END_S = 5.0


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What is measured."""

    preset: str = field(default="debug-dense", metadata={"help": "preset's name or configuration file, as for `train pretrain --config`"})
    strategy: str = field(default="", metadata={"help": "ddp or fsdp; empty: that of the preset", "choices": ("", "ddp", "fsdp")})
    tensor: int = field(default=0, metadata={"help": "ranks that share each matrix; 0: that of the preset"})
    steps: int = field(default=20, metadata={"help": f"steps, at least {_LEAST_STEPS}"})
    settings: tuple[str, ...] = field(default=(), metadata={"help": "further settings of the trainer: key=value,key=value"})
    device: str = field(default="auto", metadata=DEVICE)
    timeout_s: float = field(default=900.0, metadata=TIMEOUT_S)


class TrialError(WorkloadError):
    """The trainer failed: there is nothing to judge."""


def measure(options: TrialOptions, run: Run) -> None:
    """Train, and judge what the trainer has written; every rank trains, the first one speaks."""
    if options.steps < _LEAST_STEPS:
        raise SettingsError(f"--steps is {options.steps}", fix=f"give {_LEAST_STEPS} or more: fewer say nothing about the loss")
    words = _settings(options)
    settings = load_settings([options.preset], words)
    check_settings(settings, world_size())
    sizes: Sizes = {
        "preset": options.preset,
        "strategy": settings.parallel.strategy,
        "tensor": settings.parallel.tensor,
        "global_batch": settings.train.global_batch,
        "micro_batch": settings.train.micro_batch,
        "sequence_length": settings.train.sequence_length,
        "precision": settings.compute.precision,
        "steps": options.steps,
    }
    folder = run.folder / "trial"
    folder.mkdir(exist_ok=True)
    if own_rank() == 0:
        (folder / "steps.jsonl").unlink(missing_ok=True)
    with run.series("tokens_per_s", "tokens/s", "higher", sizes) as speed:
        done = run_child(
            [sys.executable, str(_PRETRAIN), "--config", options.preset, *words],
            timeout_s=max(1.0, options.timeout_s - _TO_END_S),
            environment={**os.environ, "RUN_DIR": str(folder.absolute())},
            keep_output=False,
        )
        sys.stderr.write(done.stderr)
        if done.returncode not in {0, NotFiniteError.exit_code}:
            raise _failure(done)
        if own_rank() != 0:
            speed.done([0.0], correct=None)  # nothing of this rank is written
            return
        steps = _read_steps(folder)
        correct = done.returncode == 0 and loss_goes_down([step["loss"] for step in steps])
        speed.done([step["tokens_per_s"] for step in steps[_WARM_UP_STEPS:]], correct=correct)
    with run.series("loss", "nat", "lower", sizes) as loss:
        loss.started = speed.started
        loss.done([step["loss"] for step in steps[-(len(steps) // 4) :]], correct=correct)


def loss_goes_down(losses: list[float]) -> bool:
    """Return whether all losses are finite, and the last quarter of them is lower than the first."""
    quarter = len(losses) // 4
    if quarter == 0 or not all(math.isfinite(loss) for loss in losses):
        return False
    return statistics.fmean(losses[-quarter:]) < statistics.fmean(losses[:quarter])


def _settings(options: TrialOptions) -> list[str]:
    """Return what is said to the trainer beside the preset; what the user says comes last and wins."""
    words = [
        f"train.steps={options.steps}",
        f"compute.device={options.device}",
        "optimizer.warmup_steps=2",
        "checkpoint.every_steps=0",
        "checkpoint.at_end=false",
        "checkpoint.resume=never",
    ]
    words += [f"parallel.strategy={options.strategy}"] if options.strategy else []
    words += [f"parallel.tensor={options.tensor}"] if options.tensor else []
    return [*words, *options.settings]


def _read_steps(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that the trainer has written.

    Raises:
        TrialError: There are too few to say anything.
    """
    path = folder / "steps.jsonl"
    steps = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    if len(steps) <= _WARM_UP_STEPS:
        raise TrialError(f"the trainer did {len(steps)} steps, too few to measure", fix=f"see this rank's log, and {path}")
    return steps


def _failure(done: subprocess.CompletedProcess[str]) -> TrialError:
    """Return the trainer's own message and mending, or its last words."""
    lines = done.stderr.strip().splitlines()
    fixes = [number for number, line in enumerate(lines) if line.startswith("  fix: ") and number > 0]
    what = lines[fixes[-1] - 1] if fixes else (lines[-1] if lines else "it said nothing")
    fix = lines[fixes[-1]].removeprefix("  fix: ") if fixes else "see this rank's log"
    return TrialError(f"the trainer ended with {done.returncode}: {what}", fix=fix)


BENCHMARK = Benchmark("trial", "Train for a few steps.", TrialOptions, measure, shared=True)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
