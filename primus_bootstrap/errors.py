"""The errors that carry a message meant for the user.

    PrimusError            1   base, never raised itself
    ├── InventoryError     2   hosts.yaml is wrong; nothing was touched
    ├── PlanError          3   cannot be satisfied; nothing was touched
    ├── RunError           4   a host did not get there; see the report
    ├── LockedError        5   another run holds the cluster's lock
    └── UnknownError       6   nobody answered who knows; what was asked for may be well or not

The class is the exit code; the message has two parts by construction, so that a fix cannot be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrimusError(Exception):
    """Base of all errors that carry a message meant for the user."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, fix: str) -> None:
        """Keep what went wrong and how to mend it apart."""
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong in the user's files.

    `file` is shown as given by the user; `line` counts from 1, and 0 means that the whole file is meant.
    `rule` is a stable kebab-case name for machines.
    """

    file: str
    line: int
    what: str
    fix: str
    rule: str

    def __str__(self) -> str:
        """Render as `file:line: what` and an indented fix."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.what}\n  fix: {self.fix}"


class InventoryError(PrimusError):
    """hosts.yaml or a file beside it is wrong; carries every problem found, and nothing was touched."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Sort the problems by place."""
        self.problems = tuple(sorted(problems))
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''}", fix="mend each line above; nothing was touched")


class PlanError(PrimusError):
    """What was asked for cannot be satisfied; nothing was touched."""

    exit_code = 3


class RunError(PrimusError):
    """At least one host did not get there; the report says which and why."""

    exit_code = 4


class LockedError(PrimusError):
    """Another run holds the lock of this cluster."""

    exit_code = 5


class UnknownError(PrimusError):
    """Nobody answered who knows what was asked for: it may be well or not."""

    exit_code = 6
