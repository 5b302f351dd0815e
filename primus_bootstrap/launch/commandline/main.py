"""Entry point of `primus-cli`: parse the command line, run a verb or a runtime, and print errors."""

from __future__ import annotations

import importlib
import io
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import primus_bootstrap
from primus_bootstrap.core.errors import PrimusError, UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.commandline import replay_option, usage
from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest, help_of_task
from primus_bootstrap.launch.settings import parser
from primus_bootstrap.launch.settings.layered_settings import Settings, SettingsFiles, find_files, resolve, working_folder
from primus_bootstrap.launch.tasks import all_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.settings.parser import CommandLine

_INTERRUPTED = 130
_HELP = {"-h", "--help"}
# The module of each verb; imported only when the verb runs.
_PROGRAMS = {
    "analyze": "builtin_tasks.analyze",
    "backend": "commandline.backend_verbs",
    "diagnose": "diagnose.analyze",
    "env": "commandline.env_show",
    "estimate": "estimate.estimate_program",
    "host-env": "detect.host_env",
    "preflight": "checks.preflight_program",
    "recipe": "recipes.recipe_program",
    "verify-env": "detect.verify_env",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run primus-cli; return its exit code."""
    words = tuple(sys.argv[1:] if words is None else words)
    if isinstance(sys.stdout, io.TextIOWrapper):  # output that the terminal's encoding cannot show must not end the run
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(words)
    except PrimusError as error:
        sys.stderr.write(f"primus-cli: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of the output, for example head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(words: tuple[str, ...]) -> int:
    line = parser.parse(words, os.environ)
    if "--version" in line.given:
        sys.stdout.write(f"primus-cli {primus_bootstrap.__version__}\n")
        return 0
    if "--help" in line.given and line.words and not line.runtimes:
        return _verb(replace(line, words=(*line.words, "--help")))
    if "--help" in line.given or not words:
        sys.stdout.write(usage.text(line))
        return 0
    if line.replay and (line.words or line.runtimes):
        raise UsageError("--replay takes the command from the snapshot", fix="remove the runtime and the task after --replay RUN_FOLDER")
    options = words[: len(words) - len(line.words)]  # everything before the task
    line = replay_option.moved_to_options(line)
    if line.replay:
        line, words = _replayed(line, options)
    if not line.runtimes:
        return _verb(line)
    return _launch(line, LaunchRequest(line.words, words, _settings(line), dict(os.environ), working_folder()))


def _launch(line: CommandLine, request: LaunchRequest) -> int:
    """Plan the run with the outermost runtime; print the plan (--dry-run) or run it. A task's --help only prints."""
    help_text = help_of_task(request)
    if help_text is not None:
        sys.stdout.write(help_text)
        return 0
    runtime = importlib.import_module(f"primus_bootstrap.launch.runtimes.{line.runtime}")
    plan = runtime.make_plan(line, request)
    if "--dry-run" in line.given:
        sys.stdout.write(plan.to_text())
        return 0
    if request.settings["main.debug"]:
        sys.stderr.write(plan.to_text())
    return int(runtime.run(plan, request))


def _replayed(line: CommandLine, options: tuple[str, ...]) -> tuple[CommandLine, tuple[str, ...]]:
    """Restore the folder and environment of a snapshot; return its command line, with its settings as flags, and its words.

    A runtime and a task that were typed with --replay are kept; the task's arguments are those of the snapshot.
    """
    from primus_bootstrap.launch.snapshot import replay  # noqa: PLC0415 - needed by few runs

    restored = replay.load(Path(line.replay))
    folder = str(Path(line.replay).absolute())
    for note in restored.notes:
        sys.stderr.write(f"primus-cli: {note}\n")
    try:
        os.chdir(restored.cwd)
    except OSError as error:
        raise UsageError(
            f"the working folder of the run cannot be opened: {error}", fix=f"create {restored.cwd} with the files of that run"
        ) from error
    for name, value in restored.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ["PRIMUS_REPLAY"] = folder
    os.environ["PRIMUS_REPLAY_STRICT"] = "1" if "--strict" in line.given else "0"
    replayed = parser.parse(restored.command, os.environ, replayed=True)
    if line.runtimes:
        again = replay_option.with_task_of(line, replayed)
        return replace(again, flags=(*replay_option.settings(restored.settings, line.runtimes), *line.flags)), (*options, *replayed.words)
    if replayed.config and not Path(replayed.config).is_file():
        sys.stderr.write(f"primus-cli: {replayed.config} no longer exists; its settings are taken from the snapshot\n")
        replayed = replace(replayed, config="")
    flags = (*replayed.flags, *replay_option.settings(restored.settings, replayed.runtimes), *line.flags)
    return replace(replayed, given=replayed.given | line.given, flags=flags), tuple(restored.command)


def _verb(line: CommandLine) -> int:
    """Run a verb, such as `config show`, or print its help."""
    verb, *rest = line.words or ("",)
    if verb in _PROGRAMS and (verb not in usage.VERBS or not _HELP & set(rest)):
        return int(importlib.import_module(f"primus_bootstrap.launch.{_PROGRAMS[verb]}").main(rest))
    if verb == "config" and rest[:1] == ["convert"]:
        return int(importlib.import_module("primus_bootstrap.launch.primus_config.convert").main(rest[1:]))
    if verb in usage.VERBS and _HELP & set(rest):
        sys.stdout.write(usage.VERBS[verb])
        return 0
    if verb == "config":
        return usage.config_show(rest, _settings(line))
    if verb == "tasks":
        return usage.print_tasks(rest, _settings(line), working_folder())
    if verb == "snapshot":
        if rest[:1] != ["diff"]:
            raise UsageError(f"snapshot: unknown verb: {' '.join(rest) or '(none)'}", fix="primus-cli snapshot diff A B")
        return int(importlib.import_module("primus_bootstrap.launch.snapshot.snapshot_diff").main(rest[1:]))
    if any(name.split()[0] == verb for name in all_tasks()):
        raise UsageError(f"{verb} is a task, and no runtime is given", fix=f"primus-cli direct -- {shlex.join(line.words)}")
    choices = (*parser.RUNTIMES, *_PROGRAMS, *usage.VERBS)
    raise UsageError(f"unknown runtime or verb: {' '.join(line.words) or '(none)'}", fix=did_you_mean(verb, choices))


def _settings(line: CommandLine) -> Settings:
    if "--only-flags" in line.given:  # the outer runtime has merged the layers and passed the result as flags
        return resolve(SettingsFiles(), {}, line.flags)
    return resolve(find_files(os.environ, working_folder(), line.config), os.environ, line.flags)


if __name__ == "__main__":
    sys.exit(main())
