"""Read what Megatron-LM 0.19 prints for a step (`training_log` in megatron/training/training.py), a checkpoint, and a NaN."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workloads.backends.common.step_clock import not_finite
from workloads.backends.common.step_writer import Step

if TYPE_CHECKING:
    from workloads.common.errors import NotFiniteError

_ITERATION = re.compile(r"\biteration +(\d+)/ *\d+ \|(.*)")
_SAVED = re.compile(r"successfully saved checkpoint from iteration +(\d+) to ")
# `Rank 1, node gpu001, device 0, iteration 5: Unexpected result nan (message='…')`: megatron/core/rerun_state_machine.py
_REJECTED = re.compile(r"Rank (\d+), .* iteration \d+: Unexpected result \S+ \(message='(.*)'\)")
_NUMBER = r"([-+0-9.eE]+|-?inf|nan)"
_FIELDS = {
    name: re.compile(rf"\| *{re.escape(text)}: *{_NUMBER} *\|", re.IGNORECASE)
    for name, text in {
        "time_ms": "elapsed time per iteration (ms)",
        "loss": "lm loss",
        "grad_norm": "grad norm",
        "learning_rate": "learning rate",
        "balance": "load_balancing_loss",
    }.items()
}


def read_step(line: str) -> Step | None:
    """Return the step of a line; None if it is another line, or a step without a loss, which Megatron-LM skips after an overflow."""
    found = _ITERATION.search(line)
    if not found:
        return None
    values = {name: float(match[1]) for name, pattern in _FIELDS.items() if (match := pattern.search(f"|{found[2]}"))}
    if "loss" not in values or "time_ms" not in values:
        return None
    return Step(
        step=int(found[1]),
        loss=values["loss"],
        step_time_s=values["time_ms"] / 1000,
        grad_norm=values.get("grad_norm"),
        learning_rate=values.get("learning_rate"),
        balance_loss=values.get("balance"),
    )


def read_checkpoint(line: str) -> tuple[int, str] | None:
    """Return the step and the folder's name of a checkpoint that the line reports as complete."""
    found = _SAVED.search(line)
    return (int(found[1]), folder_name(int(found[1]))) if found else None


def folder_name(step: int) -> str:
    """Return the name that Megatron-LM gives to a checkpoint's folder."""
    return f"iter_{step:07d}"


def rejected_result(error: RuntimeError, step: int) -> NotFiniteError | None:
    """Return the error of this project for Megatron-LM's own one about a loss or a gradient; None for another error.

    Megatron-LM counts one step more than it prints.
    """
    found = _REJECTED.search(str(error))
    return not_finite(f"loss or gradient is not finite ({found[2]}) at step {step}, first on rank {found[1]}") if found else None
