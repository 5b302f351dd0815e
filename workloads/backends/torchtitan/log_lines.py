"""Read the lines that TorchTitan 0.2.2 prints for a step (torchtitan/components/metrics.py), and those of trainer.py beside this file.

TorchTitan prints tokens per second of a rank, and no learning rate and no time of a step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workloads.backends.common.step_writer import Step

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts

_NUMBER = r"([-+0-9.,eE]+|-?inf|nan)"
_STEP = re.compile(
    rf"\bstep: +(\d+) +loss: +{_NUMBER} +grad_norm: +{_NUMBER} +memory: +{_NUMBER}GiB\([^)]*\) +tps: +{_NUMBER} +tflops: +{_NUMBER}"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_RATE = re.compile(r"\blearning rate of step (\d+): (\S+)$")
_SAVED = re.compile(r"\bcheckpoint of step (\d+) is complete$")


class StepLines:
    """Reads the steps of one run."""

    def __init__(self, facts: RunFacts, ranks: int) -> None:
        """Remember the tokens of a step."""
        self._tokens = facts.global_batch * facts.sequence_length
        self._ranks = ranks
        self._rates: dict[int, float] = {}

    def read_step(self, line: str) -> Step | None:
        """Return the step of a line; None if it is another line."""
        line = _COLOR.sub("", line)
        rate = _RATE.search(line)
        if rate:
            self._rates = {int(rate[1]): float(rate[2])}
            return None
        found = _STEP.search(line)
        if not found:
            return None
        step = int(found[1])
        loss, norm, memory, speed, _ = (float(value.replace(",", "")) for value in found.groups()[1:])
        return Step(
            step=step,
            loss=loss,
            step_time_s=self._tokens / self._ranks / max(speed, 1.0),
            grad_norm=norm,
            learning_rate=self._rates.get(step),
            memory_peak_gib=memory if memory > 0 else None,
        )


def rate_line(step: int, rate: float) -> str:
    """Return the line for the learning rate of a step, which comes before TorchTitan's line."""
    return f"learning rate of step {step}: {rate!r}"


def saved_line(step: int) -> str:
    """Return the line for a complete checkpoint."""
    return f"checkpoint of step {step} is complete"


def read_checkpoint(line: str) -> tuple[int, str] | None:
    """Return the step and the folder's name of a checkpoint that the line reports as complete."""
    found = _SAVED.search(line)
    return (int(found[1]), folder_name(int(found[1]))) if found else None


def folder_name(step: int) -> str:
    """Return the name that TorchTitan gives to a checkpoint's folder."""
    return f"step-{step}"
