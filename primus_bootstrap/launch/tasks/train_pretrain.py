"""The task `train pretrain`: pre-training of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.runtimes.self_exec import presets_in
from primus_bootstrap.launch.tasks import Program, Request, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG = "--config"
_SUFFIXES = (".yaml", ".yml", ".json")


def program(request: Request) -> Program:
    """Return the training program with its arguments."""
    return training_program(request, "pretrain.py")


def training_program(request: Request, script: str) -> Program:
    """Return a program of workloads/train with its arguments.

    Raises:
        UsageError: A value of --config is neither a file nor a preset.
    """
    workloads = request.workloads()
    presets = presets_in(workloads)
    for name in _configurations(request.arguments):
        if presets and name not in presets and not (request.cwd / name).is_file() and not (request.prepared and _is_path(name)):
            raise UsageError(f"{_CONFIG} {name}: no such file or preset", fix=did_you_mean(name, presets))
    return Program((str(workloads / "train" / script),), request.arguments)


def _configurations(arguments: tuple[str, ...]) -> Iterator[str]:
    """Yield the values of --config."""
    for number, argument in enumerate(arguments):
        if argument == _CONFIG:
            yield from arguments[number + 1 : number + 2]
        elif argument.startswith(f"{_CONFIG}="):
            yield argument[len(_CONFIG) + 1 :]


def _is_path(name: str) -> bool:
    return "/" in name or Path(name).suffix in _SUFFIXES


TASK = Task(
    name="train pretrain",
    meaning="Train a language model from scratch.",
    usage="--config FILE|PRESET [key=value]...",
    program=program,
)
