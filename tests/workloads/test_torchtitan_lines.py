"""workloads.backends.torchtitan without TorchTitan: the lines that it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from workloads.backends.common.step_writer import Step
from workloads.backends.torchtitan.log_lines import StepLines, rate_line, read_checkpoint, saved_line

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts

START = "[titan] 2026-11-29 01:06:40,879 - root - INFO - "
LINE = f"{START}step: 12  loss:  6.27166  grad_norm:  0.4689  memory: 61.25GiB(44.04%)  tps: 6,400  tflops: 1,370.20  mfu: 37.50%"
ON_A_CPU = f"{START}step:  1  loss:      nan  grad_norm:     inf  memory: -0.00GiB(-0.00%)  tps: 0  tflops: 0.00  mfu: 0.00%"
COLORED = LINE.replace("step: 12", "\x1b[31mstep: 12").replace("  loss", "  \x1b[32mloss").replace("  tps", "  \x1b[34mtps") + "\x1b[39m"


class _Facts:
    global_batch, sequence_length = 16, 8000


def lines() -> StepLines:
    """Return the reader of a run on two ranks."""
    return StepLines(cast("RunFacts", _Facts()), ranks=2)


def test_a_step_is_read() -> None:
    """The time of a step follows from the tokens per second of a rank; the learning rate has a line of its own."""
    reader = lines()
    expected = Step(step=12, loss=6.27166, step_time_s=16 * 8000 / 2 / 6400, grad_norm=0.4689, learning_rate=3e-4, memory_peak_gib=61.25)

    assert reader.read_step(rate_line(12, 3e-4)) is None
    assert reader.read_step(LINE) == expected
    assert reader.read_step(COLORED) == expected


def test_the_learning_rate_of_another_step_is_not_used() -> None:
    """It would be wrong."""
    reader = lines()
    reader.read_step(rate_line(11, 3e-4))
    step = reader.read_step(LINE)

    assert step is not None
    assert step.learning_rate is None


def test_a_step_without_numbers_is_read() -> None:
    """A diverged run, on a device without a counter of memory."""
    step = lines().read_step(ON_A_CPU)

    assert step is not None
    assert str(step.loss) == "nan"
    assert step.grad_norm == float("inf")
    assert step.memory_peak_gib is None


def test_other_lines_are_no_steps() -> None:
    """A validation has no gradient."""
    assert lines().read_step(f"{START}validate step: 12  loss:  6.2716  memory: 61.25GiB(44.04%)  tps: 6,400") is None
    assert lines().read_step(f"{START}Training starts at step 1") is None


def test_a_checkpoint_is_read() -> None:
    """Its folder has TorchTitan's name."""
    assert read_checkpoint(saved_line(40)) == (40, "step-40")
    assert read_checkpoint(f"{START}Saving a full checkpoint at last step, step 40.") is None
