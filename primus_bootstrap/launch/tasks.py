"""The tasks that can follow `--`.

They are each module of `builtin_tasks` with `TASK = Task(...)`, entry points in the group `primus_cli.tasks`, and tasks of plug-ins.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

GROUP = "primus_cli.tasks"
_BUILT_IN = "primus_bootstrap.launch.builtin_tasks"
TORCHRUN, PYTHON, HERE = "torchrun", "python", "here"


@dataclass(frozen=True)
class Request:
    """The input of a task."""

    arguments: tuple[str, ...]  # the arguments of the task
    python: str  # the Python with torch
    workloads: Callable[[], Path]  # returns the folder of the workloads
    cwd: Path = Path()  # the working folder of the program
    prepared: bool = False  # hooks or patches run before the program and may create its files
    find: Callable[[Path], Path | None] = lambda path: path  # where a file of the program is on this machine; None: only in the image
    run_dir: Path = Path()  # the run folder
    ranks: int = 0  # processes of the run; 0: not known on this machine
    gpu: str = ""  # model of the GPUs; empty: none, or not known on this machine
    backend_folder: str = ""  # the setting backend.folder


@dataclass(frozen=True)
class Program:
    """The program of a task. `argv` is a script with arguments, or, for the launcher python, optionally a whole command."""

    argv: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that it needs; the user's replace them
    files: tuple[tuple[str, str], ...] = ()  # path and content of files to write before the start
    notes: tuple[str, ...] = ()  # remarks for the plan
    last_rank_logs: bool = False  # the last rank prints the progress, and not the first one
    per_node: bool = False  # one process per node uses all its devices; torchrun is not needed


def key_value(name: str, value: str) -> tuple[str, ...]:
    """Convert a hook's `extra.a.b=V` to an argument of the trainers."""
    return (f"{name}={value}",)


def long_option(name: str, value: str) -> tuple[str, ...]:
    """Convert a hook's `extra.a.b=V` to an option with a value."""
    return (f"--{name}", value)


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str  # one or two words
    meaning: str  # one sentence for the list of tasks
    usage: str  # the arguments
    # torchrun starts one process per rank, python one per node; here calls `run` in this process, without a run folder
    launcher: str = TORCHRUN
    program: Callable[[Request], Program] | None = None  # returns the program to start
    # checks the arguments on the machine where the command is typed, before anything is started or queued; returns remarks for the plan
    check: Callable[[Request], tuple[str, ...]] | None = None
    # returns the interpreter of the task's own environment, unless the command line names one; empty: the one of the settings
    python: Callable[[Request], str] | None = None
    help: Callable[[Request], str] | None = None  # returns the text of --help; without it, the program prints its own
    run: Callable[[Sequence[str]], int] | None = None  # runs the task, for the launcher here
    added: Callable[[str, str], tuple[str, ...]] = field(default=key_value)  # converts a hook's `extra.a.b=V` to arguments
    source: str = ""  # the file of the plug-in that defines it; empty for other tasks

    @property
    def hook_folder(self) -> str:
        """The folder of this task's hooks below a hooks folder, like train/pretrain."""
        return self.name.replace(" ", "/")


def all_tasks(plugins: Sequence[Task] = ()) -> Mapping[str, Task]:
    """Return every task by name, the given ones of plug-ins included.

    Raises:
        UsageError: Two tasks have the same name, or an entry point is not a Task.
    """
    found: dict[str, Task] = {}
    builtin = importlib.import_module(_BUILT_IN)  # by name, because these modules import this one
    for module in pkgutil.iter_modules(builtin.__path__):
        task = importlib.import_module(f"{_BUILT_IN}.{module.name}").TASK
        found[task.name] = task
    for point in _entry_points():
        task = point.load()
        if not isinstance(task, Task):
            fix = "make it refer to a primus_bootstrap.launch.tasks.Task"
            raise UsageError(f"the entry point {point.name} of {GROUP} is not a Task", fix=fix)
        if task.name in found:
            fix = f"rename one of the tasks, or uninstall {point.value.partition('.')[0]}"
            raise UsageError(f"the entry point {point.name} of {GROUP} has the name of another task: {task.name}", fix=fix)
        found[task.name] = task
    for task in plugins:
        if task.name in found:
            raise UsageError(f"{task.source}: primus-cli has a task {task.name} already", fix="give the task of the plug-in another name")
        found[task.name] = task
    return found


def table(tasks: Iterable[Task]) -> str:
    """Return each task with its description and arguments."""
    return "".join(f"  {task.name:16} {task.meaning}\n{'':19}{task.usage}\n" for task in tasks)


def _entry_points() -> Sequence[metadata.EntryPoint]:
    points = metadata.entry_points()
    if hasattr(points, "select"):
        return tuple(points.select(group=GROUP))
    return tuple(points.get(GROUP, ()))  # Python 3.9


def find_task(words: Sequence[str], plugins: Sequence[Task] = ()) -> tuple[Task, tuple[str, ...]]:
    """Return the task with the name in the first words, and the remaining words.

    Raises:
        UsageError: No task is given, or it does not exist.
    """
    known = all_tasks(plugins)
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in known:
            return known[name], tuple(words[length:])
    if not words:
        raise UsageError("no task is given after --", fix=f"choose from: {', '.join(known)}")
    group = [name for name in known if name.startswith(f"{words[0]} ")]
    name = " ".join(words[:2]) if group else words[0]
    raise UsageError(f"no such task: {name}", fix=did_you_mean(name, group or known))
