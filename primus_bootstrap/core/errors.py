"""The errors that carry a message for the user. The package uses this hierarchy, also in programs that run on nodes.

    PrimusError            1   base class, never raised itself
    ├── InventoryError     2   hosts.yaml is wrong; nothing was changed
    ├── UsageError         2   a command line (for example an unknown phase or host), a settings file or job.json is wrong
    ├── PlanError          3   the request is valid and cannot be carried out; nothing was changed
    ├── RunError           4   at least one host failed; the report has the cause
    │   └── StepError      4   a hook or a patch stopped a run before its program was started
    ├── LockedError        5   another run holds the lock
    └── UnknownError       6   no authoritative answer; the state is unknown

The number is the exit code. A sub-package may derive its own class from one of these, so that callers can catch it.
Every message has two parts: what happened, and what to do about it. Python 3.9, standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrimusError(Exception):
    """Base class of all errors that carry a message for the user."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, fix: str) -> None:
        """Store what happened and what to do about it."""
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        """Return both parts, as they are printed."""
        return f"{self.what}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, so that an error can be passed between processes."""
        return _rebuild, (type(self), self.what, self.fix)


def _rebuild(kind: type[PrimusError], what: str, fix: str) -> PrimusError:
    return kind(what, fix=fix)


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in the user's files."""

    file: str  # the file, as the user named it
    line: int  # line number, from 1. 0 means the whole file.
    what: str  # what is wrong
    fix: str  # an edit or a command that corrects it
    rule: str  # stable name of the rule in kebab case, for programs

    def __str__(self) -> str:
        """Return `file:line: what` and the indented fix."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.what}\n  fix: {self.fix}"


class InventoryError(PrimusError):
    """hosts.yaml or one of its variable files is wrong. `problems` contains every mistake."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Sort the problems by file and line."""
        self.problems = tuple(sorted(problems))
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''}", fix="correct each line above; nothing was changed")

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling."""
        return InventoryError, (self.problems,)


class UsageError(PrimusError):
    """A command line, a settings file or job.json is wrong; nothing was started."""

    exit_code = 2


def joined(errors: Sequence[UsageError]) -> UsageError:
    """Return one error with the messages of all, in their order."""
    *others, last = errors
    return UsageError("\n".join((*map(str, others), last.what)), fix=last.fix)


class PlanError(PrimusError):
    """The request cannot be carried out; nothing was changed."""

    exit_code = 3


class RunError(PrimusError):
    """At least one host failed; the report has the cause."""

    exit_code = 4


class StepError(RunError):
    """A hook or a patch stopped a run before its program was started."""


class LockedError(PrimusError):
    """Another run holds the lock."""

    exit_code = 5


class UnknownError(PrimusError):
    """There is no authoritative answer: the state is unknown."""

    exit_code = 6
