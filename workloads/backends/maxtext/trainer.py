"""MaxText's training loop with this project's lines, checkpoints and reaction to SIGTERM. Import it after the shim of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import logging
from maxtext.common import metric_logger
from maxtext.trainers.pre_train import train as maxtext_train
from maxtext.utils.exceptions import StopTraining

from workloads.backends.common.step_clock import require_finite
from workloads.backends.common.step_writer import Step
from workloads.backends.maxtext.log_lines import step_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from workloads.backends.maxtext.checkpoints import Checkpoints


class Metrics(metric_logger.MetricLogger):  # type: ignore[misc]  # MaxText is not installed where types are checked
    """MaxText's metrics; they also print the exact values, and end the run after the step of the checkpoint that SIGTERM caused."""

    checkpoints: Checkpoints

    def buffer_and_write_metrics(
        self,
        metrics: dict[str, Any],
        step: int,
        step_time_delta: timedelta | None = None,
        is_training: bool = True,  # noqa: FBT001, FBT002 - MaxText's signature
    ) -> None:
        """Take the values of a step; those of the step before are printed.

        Raises:
            StopTraining: This is the last step, because of SIGTERM.
        """
        super().buffer_and_write_metrics(metrics, step, step_time_delta, is_training)
        if is_training and self.checkpoints.stopped:
            raise StopTraining("SIGTERM")

    def log_metrics(self, metrics: dict[str, Any], step: int, metric_type: str) -> None:
        """Print the lines of a step.

        Raises:
            NotFiniteError: Its loss or gradient is not finite, and abort_on_nan_loss is on.
        """
        super().log_metrics(metrics, step, metric_type)
        if metric_type == "train":
            found = _step(metrics["scalar"], step, experts=self.config.num_experts > 1)
            print(step_line(found), flush=True)
            if self.config.abort_on_nan_loss:
                require_finite(found.step, found.loss, found.grad_norm or 0.0)


def _step(scalars: dict[str, Any], step: int, *, experts: bool) -> Step:
    def value(name: str) -> float | None:
        return float(scalars[name]) if name in scalars else None

    return Step(
        step=step + 1,
        loss=float(scalars["learning/loss"]),
        balance_loss=value("learning/moe_lb_loss") if experts else None,
        grad_norm=value("learning/raw_grad_norm"),
        learning_rate=float(scalars["learning/current_learning_rate"]),
        step_time_s=float(scalars["perf/step_time_seconds"]),
    )


def train(arguments: Sequence[str], checkpoints: Checkpoints) -> None:
    """Train with the arguments of MaxText."""
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    checkpoints.install()
    Metrics.checkpoints = checkpoints
    metric_logger.MetricLogger = Metrics
    maxtext_train.main(["train.py", *arguments])
