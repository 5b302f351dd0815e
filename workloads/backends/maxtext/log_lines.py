"""The lines that trainer.py and checkpoints.py print for a step and for a checkpoint.

MaxText 0.2.5 prints a line of its own for a step (common/metric_logger.py), with three decimals of the loss, without the norm of the
gradients and the learning rate. It counts steps from 0; these lines count from 1, as the other backends do.
"""

from __future__ import annotations

import re

from workloads.backends.common.step_writer import Step

_NUMBER = r"([-+0-9.eE]+|-?inf|nan)"
_STEP = re.compile(
    rf"^training step (\d+): loss {_NUMBER} balance_loss (none|{_NUMBER}) grad_norm (none|{_NUMBER})"
    rf" learning_rate {_NUMBER} seconds {_NUMBER}$"
)
_SAVED = re.compile(r"^checkpoint of step (\d+) is complete: (\S+)$")


def step_line(step: Step) -> str:
    """Return the line of a step."""
    optional = {name: "none" if value is None else repr(value) for name, value in (("b", step.balance_loss), ("g", step.grad_norm))}
    return (
        f"training step {step.step}: loss {step.loss!r} balance_loss {optional['b']} grad_norm {optional['g']}"
        f" learning_rate {step.learning_rate!r} seconds {step.step_time_s!r}"
    )


def read_step(line: str) -> Step | None:
    """Return the step of a line; None if it is another line."""
    found = _STEP.match(line)
    if not found:
        return None
    return Step(
        step=int(found[1]),
        loss=float(found[2]),
        balance_loss=None if found[3] == "none" else float(found[3]),
        grad_norm=None if found[5] == "none" else float(found[5]),
        learning_rate=float(found[7]),
        step_time_s=float(found[8]),
    )


def saved_line(step: int, folder: str) -> str:
    """Return the line for a complete checkpoint."""
    return f"checkpoint of step {step} is complete: {folder}"


def read_checkpoint(line: str) -> tuple[int, str] | None:
    """Return the step and the folder's name of a checkpoint that the line reports as complete."""
    found = _SAVED.match(line)
    return (int(found[1]), found[2]) if found else None


def folder_name(step: int) -> str:
    """Return the name that MaxText gives to a checkpoint's folder: the number of the last step, counted from 0."""
    return str(step - 1)
