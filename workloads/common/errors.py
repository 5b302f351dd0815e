"""The errors of the workloads. Each has a message and a fix; the class gives the exit code.

    WorkloadError          1   base class, never raised itself
    ├── SettingsError      2   a setting is wrong; nothing was started
    ├── DataError         66   training data is missing or cannot be read
    ├── StorageError      74   a checkpoint or the telemetry cannot be written or read
    ├── NotFiniteError    76   the loss or the gradient is NaN or infinite
    └── StalledError      77   no progress; also the exit code of the watchdog

A program that stops early with a complete checkpoint exits with `STOPPED_EARLY`. 66, 74 and 75 are codes of sysexits.h.
"""

from __future__ import annotations

from typing import ClassVar

STOPPED_EARLY = 75


class WorkloadError(Exception):
    """Base class of all errors that carry a message for the user."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, fix: str) -> None:
        """Store the message and the fix."""
        super().__init__(what)
        self.what = what
        self.fix = fix


class SettingsError(WorkloadError):
    """A setting is wrong; nothing was started."""

    exit_code = 2


class DataError(WorkloadError):
    """Training data is missing or cannot be read."""

    exit_code = 66


class StorageError(WorkloadError):
    """A checkpoint or the telemetry cannot be written or read."""

    exit_code = 74


class NotFiniteError(WorkloadError):
    """The loss or the gradient is NaN or infinite. The checkpoints on disk are from before."""

    exit_code = 76


class StalledError(WorkloadError):
    """A step exceeded its time limit; the watchdog ends the rank with this exit code."""

    exit_code = 77
