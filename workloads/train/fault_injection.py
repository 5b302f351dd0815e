"""Inject a fault at a given step to test failure handling: a rank hangs, crashes, computes NaN, or is slow."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from workloads.train.settings import FaultInjectionSettings
    from workloads.train.step import Gradients

_MARKER = "drill.done"


class FaultInjector:
    """The fault of this rank."""

    def __init__(self, settings: FaultInjectionSettings, folder: Path, rank: int) -> None:
        """Disable the fault if it is for another rank or was already injected."""
        self._settings, self._marker = settings, folder / _MARKER
        injected = settings.once and self._marker.exists()
        self._kind = settings.kind if rank == settings.rank and not injected else "none"

    def before(self, step: int) -> None:
        """Hang, crash or sleep if this is the step."""
        if self._kind == "slow" and step >= self._settings.step:
            time.sleep(self._settings.slow_s)
        if self._kind in {"hang", "crash"} and step == self._settings.step:
            self._mark()
            if self._kind == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                time.sleep(3600)

    def after(self, gradients: Gradients, step: int) -> Gradients:
        """Return the gradients, with a loss of NaN if this is the step."""
        return replace(gradients, loss=gradients.loss * float("nan")) if self.spoils(step) else gradients

    def spoils(self, step: int) -> bool:
        """Return whether the loss of a step must become NaN."""
        spoiled = self._kind == "nan" and step == self._settings.step
        if spoiled:
            self._mark()
        return spoiled

    def _mark(self) -> None:
        print(f"drill: {self._kind} at step {self._settings.step}", flush=True)
        self._marker.touch()
