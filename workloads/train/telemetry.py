"""Write the metrics of a run: a JSON line per step, Prometheus text files, printed lines, and a final result. Only rank 0 writes."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workloads.common.device import compute_units, device_name
from workloads.common.errors import StorageError
from workloads.common.peaks import find_peak
from workloads.common.results import append_result, spread, surroundings
from workloads.common.step_files import SCHEMA, Gauges, StepRecord, line, open_for_lines, prometheus_text
from workloads.train.flops import FORMULA, active_parameters, flops_per_token, parameters

if TYPE_CHECKING:
    from pathlib import Path

    from workloads.common.process_group import Group
    from workloads.train.settings import Settings

# The first steps of a process compile and fill caches. They are excluded from the median.
_WARMUP_STEPS = 3
# The result's median is computed over at most this many of the latest steps.
_STEPS_KEPT = 10_000


class Telemetry:
    """The metrics of a run, from one process."""

    def __init__(self, folder: Path, settings: Settings, group: Group) -> None:
        """Open steps.jsonl for appending."""
        self._folder, self._settings, self._group = folder, settings, group
        self._device = device_name(group.device)
        self._peak = find_peak(self._device, compute_units(group.device), settings.compute.precision)
        self.flops_per_token = flops_per_token(settings.model, settings.train.sequence_length)
        self._gauges = Gauges(folder, settings.telemetry.prometheus_file)
        self._steps = open_for_lines(folder / "steps.jsonl")
        # Not `job`, because Prometheus renames that label in favour of its own.
        self._labels = {"run": str(folder), "job_id": os.environ.get("PRIMUS_JOB_ID", ""), "host": socket.gethostname()}
        self._newest: deque[StepRecord] = deque(maxlen=_STEPS_KEPT)

    def speed(self, step_time_s: float) -> dict[str, Any]:
        """Return the fields of a record that depend on the time of a step."""
        tokens = self._settings.train.global_batch * self._settings.train.sequence_length
        per_device = tokens / step_time_s / self._group.world_size
        tflops = per_device * self.flops_per_token / 1e12
        return {
            "tokens_per_s": tokens / step_time_s,
            "tokens_per_s_per_device": per_device,
            "tflops_per_s_per_device": tflops,
            "mfu": tflops / self._peak.tflops if self._peak else None,
        }

    def write(self, record: StepRecord) -> None:
        """Record a step.

        Raises:
            StorageError: A file in the run folder cannot be written.
        """
        self._newest.append(record)
        try:
            self._steps.write(json.dumps(asdict(record)) + "\n")
            self._steps.flush()
            self._gauges.write(prometheus_text(record, self._labels))
        except OSError as error:
            raise StorageError(
                f"{self._folder}: telemetry cannot be written: {error}", fix="free space or repair the storage, then resume"
            ) from error
        if record.step % self._settings.telemetry.print_every_steps == 0:
            print(line(record), flush=True)

    def ended(self) -> None:
        """Close the files, and write metrics that show the end of the run."""
        self._steps.close()
        if self._newest:
            with suppress(OSError):  # a full disk was already reported
                self._gauges.write(prometheus_text(self._newest[-1], self._labels, running=False))

    def close(self, outcome: str) -> None:
        """Write the result of this process's part of the run; `outcome` is `done` or `stopped early`."""
        timed = list(self._newest)[_WARMUP_STEPS:]
        median = spread([record.step_time_s for record in timed])
        speed = self.speed(median["median"]) if median["median"] else {}
        result = {
            "schema": SCHEMA,
            "kind": "train",
            "outcome": outcome,
            "step": self._newest[-1].step if self._newest else None,
            "loss": self._newest[-1].loss if self._newest else None,
            "step_time_s": median,
            **speed,
            "memory_peak_gib": max((record.memory_peak_gib for record in self._newest), default=None),
            "parameters": parameters(self._settings.model),
            "active_parameters": active_parameters(self._settings.model),
            "flops_formula": FORMULA,
            "device": self._device,
            "peak": asdict(self._peak) if self._peak else None,
            **surroundings(),
            "settings": asdict(self._settings),
        }
        append_result(self._folder, result)
