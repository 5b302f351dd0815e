"""What can be run after `--`: one file of this package a task, and the entry-point group `primus_cli.tasks` for tasks of others.

A new task is a module here with `TASK = Task(...)`, or the same object named by an installed package's entry point.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

GROUP = "primus_cli.tasks"
TORCHRUN, PYTHON, HERE = "torchrun", "python", "here"


@dataclass(frozen=True)
class Request:
    """What a task gets: its arguments, the Python that has torch, and the folder with the training programs."""

    arguments: tuple[str, ...]
    python: str
    workloads: Callable[[], Path]


@dataclass(frozen=True)
class Program:
    """What a task runs: `argv` is a script with its arguments, or a whole command where `launcher` is python and it starts with one."""

    argv: tuple[str, ...]
    arguments: tuple[str, ...] = ()


def key_value(name: str, value: str) -> tuple[str, ...]:
    """Return a change of a hook (`extra.a.b=V`) as the trainers take it."""
    return (f"{name}={value}",)


def long_option(name: str, value: str) -> tuple[str, ...]:
    """Return a change of a hook (`extra.a.b=V`) as an option with its value."""
    return (f"--{name}", value)


@dataclass(frozen=True)
class Task:
    """One task.

    `name` has one word or two. `launcher`: torchrun starts one process a rank, python one a node, here means that `run` does the work in
    this process without a run folder. `program` says what is started, `added` how a hook's `extra.a.b=V` becomes an argument.
    """

    name: str
    meaning: str
    usage: str
    launcher: str = TORCHRUN
    program: Callable[[Request], Program] | None = None
    run: Callable[[Sequence[str]], int] | None = None
    added: Callable[[str, str], tuple[str, ...]] = field(default=key_value)

    @property
    def hook_folder(self) -> str:
        """Return where hooks of this task lie below a hooks folder, like train/pretrain."""
        return self.name.replace(" ", "/")


def all_tasks() -> Mapping[str, Task]:
    """Return every task by name; one of another package may not take a name that is taken.

    Raises:
        UsageError: Two packages have a task of one name, or an entry point is none.
    """
    found: dict[str, Task] = {}
    for module in pkgutil.iter_modules(__path__):
        task = importlib.import_module(f"{__name__}.{module.name}").TASK
        found[task.name] = task
    for point in _entry_points():
        task = point.load()
        if not isinstance(task, Task):
            raise UsageError(f"the entry point {point.name} of {GROUP} is no Task", fix="let it name a primus_bootstrap.launch.tasks.Task")
        if task.name in found:
            raise UsageError(
                f"the entry point {point.name} of {GROUP} has the name of another task: {task.name}", fix="give it another name"
            )
        found[task.name] = task
    return found


def _entry_points() -> Sequence[metadata.EntryPoint]:
    points = metadata.entry_points()
    if hasattr(points, "select"):
        return tuple(points.select(group=GROUP))
    return tuple(points.get(GROUP, ()))  # Python 3.9


def find_task(words: Sequence[str]) -> tuple[Task, tuple[str, ...]]:
    """Return the task that the first words name, and the words after its name.

    Raises:
        UsageError: There is no such task.
    """
    known = all_tasks()
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in known:
            return known[name], tuple(words[length:])
    if not words:
        raise UsageError("there is no task after --", fix=f"choose from: {', '.join(known)}")
    asked = " ".join(words[:2]) if any(name.startswith(f"{words[0]} ") for name in known) else words[0]
    raise UsageError(f"no such task: {asked}", fix=did_you_mean(asked, known))
