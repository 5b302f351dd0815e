"""The arguments of the training programs: check them and their files before anything is started or queued, and print the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError, joined
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.programs import train_settings
from primus_bootstrap.launch.self_exec import presets_in
from primus_bootstrap.launch.tasks import Program, Request, Task
from primus_bootstrap.launch.training import backend_training, native_training
from primus_bootstrap.launch.training.training_files import Files, read_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from primus_bootstrap.launch.programs.settings_file import Given


def training_task(name: str, meaning: str, script: str) -> Task:
    """Return the task of a program in workloads/train. `train pretrain` also trains on the backends."""
    backends = script == "pretrain.py"
    return Task(
        name=name,
        meaning=meaning,
        usage="--config FILE|PRESET|RECIPE|MODEL [backend=NAME] [key=value]..." if backends else "--config FILE|PRESET [key=value]...",
        program=lambda request: program(request, script, backends=backends),
        check=lambda request: check(request, backends=backends),
        python=(lambda request: backend_training.interpreter(request, read(request))) if backends else None,
        help=lambda request: help_text(name, request, backends=backends),
    )


def read(request: Request) -> Files:
    """Return the settings of the files and arguments."""
    options = _parser("train pretrain").parse(request.arguments)
    return read_files(request, options.config, options.settings)


def program(request: Request, script: str, *, backends: bool) -> Program:
    """Return the program: the native trainer, or that of a backend."""
    if backends:
        files = read(request)
        if backend_training.chosen(files):
            return backend_training.program(request, files)
    return Program((str(request.workloads() / "train" / script),), request.arguments)


def check(request: Request, *, backends: bool = True) -> tuple[str, ...]:
    """Check the arguments and the files that they name; return remarks for the plan.

    Raises:
        UsageError: A file is missing, or a setting is unknown or has a wrong value; the message lists all wrong settings.
    """
    files = read(request)
    if backends and backend_training.chosen(files):
        return (*files.remarks, *backend_training.check(request, files))
    workloads = request.workloads()
    presets = presets_in(workloads)
    for name in files.names:
        if presets and name not in presets and not (request.prepared and files.is_path(name)):
            fix = backend_training.model_hint(name) or did_you_mean(name, presets)
            raise UsageError(f"--config {name}: no such file or preset", fix=fix)
    check_settings(workloads, files.given)
    return (*files.remarks, *_check_values(request, files))


def _check_values(request: Request, files: Files) -> tuple[str, ...]:
    """Check the values against each other, and return the estimate; neither is known if a file is only on the hosts."""
    workloads = request.workloads()
    known = train_settings.known_settings(workloads)
    if not known or files.remarks or request.prepared:
        return ()
    settings = native_training.values(workloads, known, files.names, files.given)
    native_training.check_combinations(workloads, settings)
    return native_training.estimate(request, settings)


def check_settings(workloads: Path, given: Sequence[Given]) -> None:
    """Check names and values against the settings of the programs below `workloads`.

    Raises:
        UsageError: With every problem.
    """
    known = train_settings.known_settings(workloads)
    problems = train_settings.problems(known, given) if known else []
    if problems:
        raise joined(problems)


def help_text(task: str, request: Request, *, backends: bool = True) -> str:
    """Return the options and every setting with its type, default and meaning."""
    known = train_settings.known_settings(request.workloads())
    lines = [f"  {name}  ({item.type_name}, default {item.default!r})\n      {item.meaning}" for name, item in known.items()]
    text = _parser(task).format_help() + ("\nsettings:\n" + "\n".join(lines) + "\n" if lines else "")
    return text + (backend_training.help_text() if backends else "")


def _parser(task: str) -> OptionParser:
    """Return the parser of the same options as in workloads/train/program.py."""
    parser = OptionParser(f"primus-cli direct -- {task}", "Options and settings of the training program.")
    config = "YAML or JSON file, or a preset's name; a later one overrides an earlier one. With backend=: also a recipe or a model"
    parser.add_argument("--config", action="append", default=[], metavar="FILE|PRESET", help=config)
    parser.add_argument("--print-settings", action="store_true", help="print the resolved settings as JSON and exit")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="override files, for example train.steps=100")
    return parser
