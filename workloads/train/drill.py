"""Failures on purpose: a rank hangs, crashes, computes NaN or is slow at a given step, to rehearse what the cluster does about it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from workloads.train.settings import DrillSettings
    from workloads.train.step import Gradients

_DONE = "drill.done"


class Drill:
    """What goes wrong in this rank, and when."""

    def __init__(self, settings: DrillSettings, folder: Path, rank: int) -> None:
        """Do nothing where the drill is another rank's, or was held already."""
        self._settings, self._marker = settings, folder / _DONE
        held = settings.once and self._marker.exists()
        self._kind = settings.kind if rank == settings.rank and not held else "none"

    def before(self, step: int) -> None:
        """Hang, crash or sleep where it is time."""
        if self._kind == "slow" and step >= self._settings.step:
            time.sleep(self._settings.slow_s)
        if self._kind in {"hang", "crash"} and step == self._settings.step:
            self._hold()
            if self._kind == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                time.sleep(3600)

    def spoil(self, gradients: Gradients, step: int) -> Gradients:
        """Return the gradients, or a loss of NaN where it is time."""
        if self._kind == "nan" and step == self._settings.step:
            self._hold()
            return replace(gradients, loss=gradients.loss * float("nan"))
        return gradients

    def _hold(self) -> None:
        print(f"drill: {self._kind} at step {self._settings.step}", flush=True)
        self._marker.touch()
