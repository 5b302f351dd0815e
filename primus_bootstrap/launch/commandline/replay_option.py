"""Read `--replay FOLDER [--strict]` after a training task: `primus-cli direct -- train pretrain --replay FOLDER`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.settings.layered_settings import Given

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.settings.parser import CommandLine

_OPTION, _STRICT = "--replay", "--strict"
_TASKS = (("train", "pretrain"), ("train", "posttrain"))


def moved_to_options(line: CommandLine) -> CommandLine:
    """Return the command line with the option as if it stood before the runtime. The words are then the name of the task.

    Raises:
        UsageError: The option has no value, or the task has further arguments.
    """
    task, arguments = line.words[:2], list(line.words[2:])
    if task not in _TASKS or not any(word.partition("=")[0] == _OPTION for word in arguments):
        return line
    folder, given = "", set(line.given)
    while arguments:
        name, _, value = arguments.pop(0).partition("=")
        if name == _STRICT and not value:
            given.add(_STRICT)
        elif name == _OPTION and (value or arguments):
            folder = value or arguments.pop(0)
        elif name == _OPTION:
            raise UsageError(f"{_OPTION} needs a value", fix=f"write {_OPTION} RUN_FOLDER")
        else:
            fix = f"remove {name}, or start a run of its own without {_OPTION}"
            raise UsageError(f"{_OPTION} takes the arguments of {' '.join(task)} from the snapshot; {name} was given as well", fix=fix)
    return replace(line, words=task, replay=folder, given=frozenset(given))


def with_task_of(line: CommandLine, replayed: CommandLine) -> CommandLine:
    """Return the command line as typed, with the task and the arguments of the run that is replayed.

    Raises:
        UsageError: That run had another task.
    """
    if replayed.words[: len(line.words)] != line.words:
        what = f"{line.replay} is not a run of {' '.join(line.words)}: its task is {' '.join(replayed.words[:2]) or 'a program (--script)'}"
        raise UsageError(what, fix=f"primus-cli --replay {line.replay}")
    return replace(line, words=replayed.words)


def settings(restored: Mapping[str, Any], runtimes: Sequence[str]) -> tuple[Given, ...]:
    """Return the settings of a snapshot as flags. Outside Slurm, a run of Slurm takes its size from the settings and variables."""
    dropped = () if "slurm" in runtimes else ("direct.nodes_from",)
    return tuple(Given(path, value, "replay", replaces=True) for path, value in restored.items() if path not in dropped)
