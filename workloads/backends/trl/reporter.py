"""What TRL's trainers report while they train: steps, checkpoints, SIGTERM. TRL calls these methods on every rank."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from workloads.backends.common.checkpoint_marks import mark
from workloads.backends.common.step_clock import require_finite
from workloads.backends.common.step_writer import Step
from workloads.backends.trl.job import GRPO

if TYPE_CHECKING:
    from pathlib import Path

    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.common.step_clock import StepClock
    from workloads.backends.common.step_writer import StepWriter
    from workloads.backends.trl.job import Job
    from workloads.train.stop import StopRequest

FOLDER = "checkpoint-{step}"  # transformers/trainer_utils.py, PREFIX_CHECKPOINT_DIR


class Reporter(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """Writes steps and marks of checkpoints on the first rank, and stops all ranks after SIGTERM on any."""

    def __init__(self, job: Job, facts: RunFacts, checkpoints: Path, clock: StepClock, stop: StopRequest) -> None:
        """Remember the run."""
        self._job, self._facts, self._checkpoints, self._clock, self._stop = job, facts, checkpoints, clock, stop
        self.writer: StepWriter | None = None  # of the first rank
        self.stopped_early = False
        self._began = 0.0
        self._tokens = self._counted = 0
        self._waiting: Step | None = None

    def resume(self, folder: Path, step: int) -> None:
        """Continue the number of tokens of an earlier part of the run, which its last record before this step has."""
        self._tokens = tokens_until(folder / "steps.jsonl", step)

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Take the count of GRPO's trainer, which continues after a resume; that of SFT's trainer starts at 0."""
        self._counted = state.num_input_tokens_seen if self._job.method == GRPO else 0

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Start the clock of a step."""
        self._clock.begin(state.global_step + 1)
        self._began = time.monotonic()

    def on_step_end(self, _args: Any, state: Any, control: Any, **_others: Any) -> None:
        """Decide about a checkpoint; a step after SIGTERM is the last one."""
        last = state.global_step >= state.max_steps
        if not last and self._any_rank():
            self.stopped_early = control.should_training_stop = True
        due = bool(self._job.save_every) and state.global_step % self._job.save_every == 0
        control.should_save = due or self.stopped_early or (last and self._job.save_at_end)

    def _any_rank(self) -> bool:
        if not torch.distributed.is_initialized():
            return self._stop.received
        device = "cpu" if torch.distributed.get_backend() == "gloo" else "cuda"
        flag = torch.tensor(int(self._stop.received), device=device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())

    def on_log(self, _args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_others: Any) -> None:
        """Record a step. If a validation follows, its loss is added first.

        Raises:
            WorkloadError: The loss is not finite, or the record cannot be written.
        """
        if not logs or "loss" not in logs:
            return
        step = self._step(state.global_step, logs)
        require_finite(step.step, step.loss, step.grad_norm or 0.0)
        if control.should_evaluate:
            self._waiting = step
        else:
            self._write(step)

    def on_evaluate(self, _args: Any, _state: Any, _control: Any, metrics: dict[str, Any] | None = None, **_others: Any) -> None:
        """Record the step with its validation loss."""
        if self._waiting is not None:
            found = (metrics or {}).get("eval_loss")
            self._write(replace(self._waiting, validation_loss=None if found is None else float(found)))
            self._waiting = None

    def _step(self, number: int, logs: dict[str, Any]) -> Step:
        counted = int(logs.get("num_tokens", 0))
        before, tokens = self._tokens, max(0, counted - self._counted)
        self._counted, self._tokens = counted, before + tokens
        return Step(
            step=number,
            loss=float(logs["loss"]),
            step_time_s=time.monotonic() - self._began,
            grad_norm=float(logs.get("grad_norm", 0.0)),
            learning_rate=float(logs.get("learning_rate", 0.0)),
            tokens=tokens,
            tokens_before=before,
            reward=float(logs["reward"]) if "reward" in logs else None,
        )

    def _write(self, step: Step) -> None:
        if self.writer is not None:
            self.writer.write(step)

    def on_save(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Mark a checkpoint as complete when all ranks have written their parts."""
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if self.writer is not None:
            content = FOLDER.format(step=state.global_step)
            mark(self._checkpoints, state.global_step, backend=self._facts.backend, content=content, keep=self._facts.keep)


def tokens_until(path: Path, step: int) -> int:
    """Return the tokens of the newest record up to a step; 0 if there is none."""
    found = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if record["step"] <= step:
                    found = int(record["tokens"])
    except (OSError, ValueError, KeyError):
        return found
    return found
