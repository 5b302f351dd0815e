"""Train for a few steps with a preset and the parallelism of a job: tokens per second, and whether the loss decreases.

    torchrun … workloads/bench/trial.py --preset llama-3.1-8b --strategy fsdp --steps 20

Each rank runs the trainer (workloads/train/pretrain.py) in a child process, with the preset's data, without checkpoints and with a short
learning rate warm-up. The result is wrong if a loss is not finite, or if the mean loss of the last quarter of the steps is not below that
of the first quarter.
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
    # Started by path: replace this folder in sys.path by the root.
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
# As in the trainer's result: the first steps compile and fill caches.
_WARM_UP_STEPS = 3
_TO_END_S = 5.0


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """The options."""

    preset: str = field(default="debug-dense", metadata={"help": "preset's name or configuration file, as in `train pretrain --config`"})
    strategy: str = field(default="", metadata={"help": "ddp or fsdp; empty: as in the preset", "choices": ("", "ddp", "fsdp")})
    tensor: int = field(default=0, metadata={"help": "ranks that share each matrix; 0: as in the preset"})
    steps: int = field(default=20, metadata={"help": f"steps, at least {_LEAST_STEPS}"})
    settings: tuple[str, ...] = field(default=(), metadata={"help": "additional settings of the trainer: key=value,key=value"})
    device: str = field(default="auto", metadata=DEVICE)
    timeout_s: float = field(default=900.0, metadata=TIMEOUT_S)


class TrialError(WorkloadError):
    """The trainer failed."""


def measure(options: TrialOptions, run: Run) -> None:
    """Train on every rank; evaluate the trainer's metrics on rank 0."""
    if options.steps < _LEAST_STEPS:
        raise SettingsError(f"--steps is {options.steps}", fix=f"give {_LEAST_STEPS} or more, so that the loss can be compared")
    arguments = _settings(options)
    settings = load_settings([options.preset], arguments)
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
            [sys.executable, str(_PRETRAIN), "--config", options.preset, *arguments],
            timeout_s=max(1.0, options.timeout_s - _TO_END_S),
            environment={**os.environ, "RUN_DIR": str(folder.absolute())},
            keep_output=False,
        )
        sys.stderr.write(done.stderr)
        if done.returncode not in {0, NotFiniteError.exit_code}:
            raise _failure(done)
        if own_rank() != 0:
            speed.done([0.0], correct=None)  # this rank writes no result
            return
        steps = _read_steps(folder)
        correct = done.returncode == 0 and loss_decreases([step["loss"] for step in steps])
        speed.done([step["tokens_per_s"] for step in steps[_WARM_UP_STEPS:]], correct=correct)
    with run.series("loss", "nat", "lower", sizes) as loss:
        loss.started = speed.started
        loss.done([step["loss"] for step in steps[-(len(steps) // 4) :]], correct=correct)


def loss_decreases(losses: list[float]) -> bool:
    """Return whether all losses are finite, and the mean of the last quarter is below that of the first."""
    quarter = len(losses) // 4
    if quarter == 0 or not all(math.isfinite(loss) for loss in losses):
        return False
    return statistics.fmean(losses[-quarter:]) < statistics.fmean(losses[:quarter])


def _settings(options: TrialOptions) -> list[str]:
    """Return the trainer's arguments in addition to the preset. The user's settings are last, so that they override the others."""
    arguments = [
        f"train.steps={options.steps}",
        f"compute.device={options.device}",
        "optimizer.warmup_steps=2",
        "checkpoint.every_steps=0",
        "checkpoint.at_end=false",
        "checkpoint.resume=never",
    ]
    arguments += [f"parallel.strategy={options.strategy}"] if options.strategy else []
    arguments += [f"parallel.tensor={options.tensor}"] if options.tensor else []
    return [*arguments, *options.settings]


def _read_steps(folder: Path) -> list[dict[str, Any]]:
    """Return the lines in the trainer's steps.jsonl.

    Raises:
        TrialError: There are too few lines.
    """
    path = folder / "steps.jsonl"
    steps = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    if len(steps) <= _WARM_UP_STEPS:
        raise TrialError(f"the trainer completed {len(steps)} steps, too few to measure", fix=f"see this rank's log and {path}")
    return steps


def _failure(done: subprocess.CompletedProcess[str]) -> TrialError:
    """Return the trainer's message and fix, or its last line."""
    lines = done.stderr.strip().splitlines()
    fixes = [number for number, line in enumerate(lines) if line.startswith("  fix: ") and number > 0]
    what = lines[fixes[-1] - 1] if fixes else (lines[-1] if lines else "no output")
    fix = lines[fixes[-1]].removeprefix("  fix: ") if fixes else "see this rank's log"
    return TrialError(f"the trainer failed with exit code {done.returncode}: {what}", fix=fix)


BENCHMARK = Benchmark("trial", "Train for a few steps.", TrialOptions, measure, shared=True)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
