"""The arguments of the training programs: check them and their files before anything is started or queued, and print the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError, joined
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.programs import settings_file, train_settings
from primus_bootstrap.launch.self_exec import presets_in
from primus_bootstrap.launch.tasks import Program, Request, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.programs.settings_file import Given

_SUFFIXES = (".yaml", ".yml", ".json")


def training_task(name: str, meaning: str, script: str) -> Task:
    """Return the task of a program in workloads/train."""
    return Task(
        name=name,
        meaning=meaning,
        usage="--config FILE|PRESET [key=value]...",
        program=lambda request: Program((str(request.workloads() / "train" / script),), request.arguments),
        check=check,
        help=lambda request: help_text(name, request),
    )


def check(request: Request) -> tuple[str, ...]:
    """Check the arguments and the files that they name; return remarks for the plan.

    Raises:
        UsageError: A file is missing, or a setting is unknown or has a wrong value; the message lists all wrong settings.
    """
    options = _parser("train pretrain").parse(request.arguments)
    workloads = request.workloads()
    presets = presets_in(workloads)
    given: list[Given] = []
    remarks: list[str] = []
    for name in options.config:
        path = request.find(request.cwd / name)
        if path is None and _is_path(name):
            remarks.append(f"--config {name} is in no mounted folder of this machine, so it is not checked before the start")
        elif path is not None and path.is_file():
            given += settings_file.from_file(path, name)
        elif presets and name not in presets and not (request.prepared and _is_path(name)):
            raise UsageError(f"--config {name}: no such file or preset", fix=did_you_mean(name, presets))
    given += map(settings_file.from_argument, options.settings)
    check_settings(workloads, given)
    return tuple(remarks)


def check_settings(workloads: Path, given: Sequence[Given]) -> None:
    """Check names and values against the settings of the programs below `workloads`.

    Raises:
        UsageError: With every problem.
    """
    known = train_settings.known_settings(workloads)
    problems = train_settings.problems(known, given) if known else []
    if problems:
        raise joined(problems)


def help_text(task: str, request: Request) -> str:
    """Return the options and every setting with its type, default and meaning."""
    known = train_settings.known_settings(request.workloads())
    lines = [f"  {name}  ({item.type_name}, default {item.default!r})\n      {item.meaning}" for name, item in known.items()]
    return _parser(task).format_help() + ("\nsettings:\n" + "\n".join(lines) + "\n" if lines else "")


def _parser(task: str) -> OptionParser:
    """Return the parser of the same options as in workloads/train/program.py."""
    parser = OptionParser(f"primus-cli direct -- {task}", "Options and settings of the training program.")
    config = "YAML or JSON file, or a preset's name; a later one overrides an earlier one"
    parser.add_argument("--config", action="append", default=[], metavar="FILE|PRESET", help=config)
    parser.add_argument("--print-settings", action="store_true", help="print the resolved settings as JSON and exit")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="override files, for example train.steps=100")
    return parser


def _is_path(name: str) -> bool:
    return "/" in name or Path(name).suffix in _SUFFIXES
