"""The steps of a backend on one rank, as the native trainer has them: time limits, phases, and the faults of `drill.*`."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any

from workloads.common.errors import NotFiniteError
from workloads.train import flight_recorder
from workloads.train.fault_injection import FaultInjector
from workloads.train.settings import FaultInjectionSettings
from workloads.train.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from workloads.common.errors import WorkloadError

_COMPUTES, _DRILL = "forward_backward", "drill."


class StepClock:
    """Ends this rank if a step takes too long. The backend calls `begin` at the start of each step, on every rank."""

    def __init__(self, program: str, settings: Mapping[str, Any], folder: Path) -> None:
        """Read the time limits and the fault; without `watchdog.step_timeout_s`, or if it is 0, there is no limit."""
        rank = int(os.environ.get("RANK", "0"))
        self._step_s = float(settings.get("watchdog.step_timeout_s", 0.0))
        self._startup_s = max(float(settings.get("watchdog.startup_timeout_s", 0.0)), self._step_s)
        self._watchdog = Watchdog(program=program, rank=rank)
        drill = {name[len(_DRILL) :]: value for name, value in settings.items() if name.startswith(_DRILL)}
        self._faults = FaultInjector(FaultInjectionSettings(**drill), folder, rank)
        self._first = self._step = 0
        self._failure: WorkloadError | None = None

    @property
    def step(self) -> int:
        """The current step; 0 before the first one."""
        return self._step

    def start(self) -> None:
        """Start the clock, with the limit of the start-up. Call it before the process group is created."""
        if self._step_s:
            flight_recorder.enable()
            self._watchdog.start()
            self._restart()

    def begin(self, step: int) -> None:
        """Start the clock of a step; another call for the same step does nothing.

        Raises:
            WorkloadError: The error that `fail` has passed.
        """
        if self._failure is not None:
            raise self._failure
        if step == self._step:
            return
        self._step, self._first = step, self._first or step
        self._restart()
        self._watchdog.enter(_COMPUTES)
        with self._watchdog.phase("data"):
            self._faults.before(step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Set the phase of the step, for the message."""
        return self._watchdog.phase(name)

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that gets a time limit of its own, such as the one that writes a checkpoint."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._restart()
            with self._watchdog.phase(phase):
                result = function(*args, **kwargs)
            self._restart()
            return result

        return call

    def spoils(self) -> bool:
        """Return whether the loss of this step must become NaN, for a test."""
        return self._faults.spoils(self._step)

    def fail(self, error: WorkloadError) -> None:
        """End the run at the next step."""
        self._failure = self._failure or error

    def leave(self, exit_code: int) -> None:
        """Set a short limit for the end of the process."""
        self._watchdog.leave(exit_code)

    def _restart(self) -> None:
        startup = self._step == self._first  # also before the first step
        limit_s = self._startup_s if startup else self._step_s
        self._watchdog.progress(self._step, limit_s=limit_s if self._step_s else 0.0)


def require_finite(step: int, loss: float, grad_norm: float, *, first_on: int | None = None) -> None:
    """Check the values of a step.

    Args:
        step: The step.
        loss: Its loss.
        grad_norm: The norm of its gradient.
        first_on: The rank whose own loss is not finite, if it is known.

    Raises:
        NotFiniteError: One of them is NaN or infinite.
    """
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    where = f", first on rank {first_on}" if first_on is not None else ""
    what = f"loss is not finite ({loss})" if not math.isfinite(loss) else f"gradient is not finite ({grad_norm})"
    raise not_finite(f"{what} at step {step}{where}")


def not_finite(what: str) -> NotFiniteError:
    """Return the error of a loss or gradient that is not finite."""
    fix = "resume with a lower optimizer.lr or train.clip_norm; if it is always the same node, drain and check that node"
    return NotFiniteError(what, fix=fix)
