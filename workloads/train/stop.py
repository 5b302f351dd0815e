"""Being asked to stop: SIGTERM (Slurm, systemd, Kubernetes, a drained node). Noted here, acted on between two steps."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class StopRequest:
    """Whether this rank was asked to stop; a second signal changes nothing."""

    def __init__(self) -> None:
        """Take over SIGTERM."""
        self.asked = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
