"""Errors of primus-cli that carry a message meant for the user; the class is the exit code.

LaunchError (1)
├── UsageError (2): words or settings are wrong; nothing was started
├── PlanError (3): the run cannot be planned on this machine; nothing was started
└── StepError (4): a hook or a patch stopped the run before the program was started
"""

from __future__ import annotations

from typing import ClassVar


class LaunchError(Exception):
    """What is wrong, and how to mend it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, fix: str) -> None:
        """Keep what is wrong and how to mend it apart."""
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        """Return both parts as they are printed."""
        return f"{self.what}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[object, tuple[type[LaunchError], str, str]]:
        """Let it be passed from one process to another."""
        return _again, (type(self), self.what, self.fix)


def _again(kind: type[LaunchError], what: str, fix: str) -> LaunchError:
    return kind(what, fix=fix)


class UsageError(LaunchError):
    """The command line or a settings file is wrong."""

    exit_code = 2


class PlanError(LaunchError):
    """The run cannot be planned on this machine."""

    exit_code = 3


class StepError(LaunchError):
    """A hook or a patch stopped the run."""

    exit_code = 4
