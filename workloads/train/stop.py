"""Record SIGTERM (from Slurm, systemd, Kubernetes or a drain). The loop stops between two steps."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class StopRequest:
    """Whether this rank received SIGTERM."""

    def __init__(self) -> None:
        """Install the signal handler."""
        self.received = False
        signal.signal(signal.SIGTERM, self._record)

    def _record(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
