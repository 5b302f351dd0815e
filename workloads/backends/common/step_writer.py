"""Write the steps that a backend logs as the native trainer writes its own: steps.jsonl, metrics.prom, printed lines, results.jsonl."""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from workloads.backends.common.checkpoint_marks import newest_step
from workloads.common.errors import StorageError
from workloads.common.peaks import find_peak
from workloads.common.results import append_result, spread, surroundings
from workloads.common.step_files import SCHEMA, Gauges, StepRecord, line, open_for_lines, prometheus_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workloads.backends.common.run_facts import RunFacts
    from workloads.common.peaks import Peak

FORMULA = "6 N + 12 L H Q T a token; PaLM, arXiv:2204.02311, appendix B"
_WARMUP_STEPS, _STEPS_KEPT = 3, 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as a backend logs it. None: the backend does not log it."""

    step: int
    loss: float
    step_time_s: float
    grad_norm: float | None = None
    learning_rate: float | None = None
    balance_loss: float | None = None
    memory_peak_gib: float | None = None
    tokens: int | None = None  # of this step; None: full sequences
    tokens_before: int = 0  # of all steps before, if `tokens` is known
    validation_loss: float | None = None  # after this step
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a run: its name, its peak if it is known, and a function that returns this rank's peak memory in GiB."""

    name: str
    peak: Peak | None
    memory_peak_gib: Callable[[], float]


def device_of(name: str, compute_units: int, precision: str, memory_peak_gib: Callable[[], float]) -> Device:
    """Return a device with its published peak."""
    return Device(name, find_peak(name, compute_units, precision), memory_peak_gib)


class StepWriter:
    """Writes the metrics of a run in the process that logs its steps. Files are opened at the first step."""

    def __init__(self, folder: Path, facts: RunFacts, device: Callable[[], Device]) -> None:
        """Remember the run; `device` is called at the first step, when the backend has set its device up."""
        self._folder, self._facts, self._find_device = folder, facts, device
        self._labels = {"run": str(folder), "job_id": os.environ.get("PRIMUS_JOB_ID", ""), "host": socket.gethostname()}
        self._newest: deque[StepRecord] = deque(maxlen=_STEPS_KEPT)
        self._step_tokens: deque[int] = deque(maxlen=_STEPS_KEPT)
        self._written_at = 0.0
        self._device: Device | None = None
        self._steps: IO[str] | None = None
        self._gauges: Gauges | None = None

    def write(self, step: Step) -> None:
        """Record a step, and print its line.

        Raises:
            StorageError: A file in the run folder cannot be written.
        """
        try:
            record = self._record(step)
            self._newest.append(record)
            self._append(record)
        except OSError as error:
            raise StorageError(
                f"{self._folder}: telemetry cannot be written: {error}", fix="free space or repair the storage, then resume"
            ) from error
        if step.step % self._facts.print_every_steps == 0:
            print(line(record), flush=True)

    def _append(self, record: StepRecord) -> None:
        if self._steps is None:
            self._steps = open_for_lines(self._folder / "steps.jsonl")
            self._gauges = Gauges(self._folder, self._facts.prometheus_file)
        self._steps.write(json.dumps(asdict(record)) + "\n")
        self._steps.flush()
        if self._gauges is not None:
            self._gauges.write(prometheus_text(record, self._labels))

    def close(self, outcome: str) -> None:
        """Write the metrics that show the end of the run and, unless `outcome` is empty (a failure), its result."""
        if self._steps is None or self._gauges is None:
            return
        self._steps.close()
        with suppress(OSError):  # a full disk was already reported
            self._gauges.write(prometheus_text(self._newest[-1], self._labels, running=False))
        if outcome:
            append_result(self._folder, self._result(outcome))

    def _record(self, step: Step) -> StepRecord:
        self._device = device = self._device or self._find_device()
        step_time_s, waited_s = self._times(step)
        full = self._facts.global_batch * self._facts.sequence_length
        tokens = full if step.tokens is None else step.tokens
        self._step_tokens.append(tokens)
        memory_gib = step.memory_peak_gib if step.memory_peak_gib is not None else device.memory_peak_gib()
        return StepRecord(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            step=step.step,
            loss=step.loss,
            balance_loss=step.balance_loss,
            grad_norm=step.grad_norm or 0.0,
            learning_rate=step.learning_rate or 0.0,
            tokens=step.step * full if step.tokens is None else step.tokens_before + tokens,
            step_time_s=step_time_s,
            data_wait_s=0.0,  # the backends do not log it
            checkpoint_wait_s=waited_s,
            memory_peak_gib=memory_gib,
            checkpoint="idle",
            checkpoint_step=newest_step(self._folder, self._facts.checkpoint_folder),
            checkpoint_failures=0,
            validation_loss=step.validation_loss,
            reward=step.reward,
            **self._speed(step_time_s, tokens),
        )

    def _times(self, step: Step) -> tuple[float, float]:
        """Return the duration of a step, and the part of it that is outside of the backend's own time: the previous checkpoint."""
        now, before = time.monotonic(), self._written_at
        self._written_at = now
        count = step.step - self._newest[-1].step if self._newest else 0
        if not before or count < 1:
            return step.step_time_s, 0.0
        whole_s = max(step.step_time_s, (now - before) / count)
        return whole_s, whole_s - step.step_time_s

    def _speed(self, step_time_s: float, tokens: float) -> dict[str, Any]:
        facts, peak = self._facts, self._device.peak if self._device else None
        tokens_per_s = tokens / max(step_time_s, 1e-9)
        per_device = tokens_per_s / facts.devices
        tflops = per_device * facts.flops_per_token / 1e12
        return {
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_device": per_device,
            "tflops_per_s_per_device": tflops,
            "mfu": tflops / peak.tflops if peak else None,
        }

    def _result(self, outcome: str) -> dict[str, Any]:
        median = spread([record.step_time_s for record in list(self._newest)[_WARMUP_STEPS:]])
        device = self._device
        return {
            "schema": SCHEMA,
            "kind": "train",
            "backend": self._facts.backend,
            "backend_version": self._facts.version,
            "outcome": outcome,
            "step": self._newest[-1].step,
            "loss": self._newest[-1].loss,
            "step_time_s": median,
            **(self._speed(median["median"], statistics.median(self._step_tokens)) if median["median"] else {}),
            "memory_peak_gib": max(record.memory_peak_gib for record in self._newest),
            "parameters": self._facts.parameters,
            "active_parameters": self._facts.active_parameters,
            "flops_formula": FORMULA,
            "device": device.name if device else "",
            "peak": asdict(device.peak) if device and device.peak else None,
            **surroundings(),
            "settings": self._facts.settings,
        }
