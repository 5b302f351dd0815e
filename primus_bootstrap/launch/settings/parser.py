"""Parse the command line of primus-cli. The options of each runtime are the flags in data/settings.yml.

primus-cli [global] <runtime> [options] -- [<runtime> [options] --] <task> [arguments]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.settings.layered_settings import Given, SettingValueError, from_text, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.settings.layered_settings import Key

RUNTIMES = ("direct", "container", "slurm")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# The sections of data/settings.yml whose flags each runtime accepts; of two flags with one name, the first counts.
_SECTIONS = {
    "main": ("main",),
    "direct": ("main", "direct", "backend"),
    "container": ("main", "container", "direct", "backend"),
    "slurm": (),
}
_PLAIN = ("--dry-run", "--strict", "--help", "--version", "--only-flags")
_WITH_VALUE = ("--config", "--replay")
_MISSING_SEPARATOR = "write -- between the options and the task: primus-cli direct -- train pretrain --config x.yaml"


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line."""

    words: tuple[str, ...] = ()  # the task, or the verb, with its arguments
    runtimes: tuple[str, ...] = ()  # the runtimes, outermost first
    slurm_launcher: str = ""  # `srun` or `sbatch`, empty if not named
    slurm_words: tuple[str, ...] = ()  # the options for srun or sbatch, as typed
    flags: tuple[Given, ...] = ()  # the settings given as flags
    config: str = ""  # the value of --config
    replay: str = ""  # the value of --replay
    # The flags that are not settings: --dry-run, --strict, --help, --version, --only-flags.
    given: frozenset[str] = field(default_factory=frozenset)

    @property
    def runtime(self) -> str:
        """The outermost runtime; empty for a verb."""
        return self.runtimes[0] if self.runtimes else ""


def parse(words: Sequence[str], environment: Mapping[str, str], *, replayed: bool = False) -> CommandLine:
    """Parse a command line.

    Args:
        words: The words after `primus-cli`.
        environment: Has the values of `--env NAME`.
        replayed: Accept an `--env` variable or file that no longer exists; the snapshot has its values.

    Raises:
        UsageError: An option is unknown, or a `--` is missing.
    """
    options = _Options(environment, replayed=replayed)
    rest = options.take(words, "main", "primus-cli")
    runtimes: list[str] = []
    launcher = ""
    slurm_words: tuple[str, ...] = ()
    while rest and rest[0] in RUNTIMES:
        runtime, *rest = rest
        if runtime in runtimes or (runtime == "slurm" and runtimes) or runtimes[-1:] == ["direct"]:
            raise UsageError(f"{runtime} cannot follow {runtimes[-1]}", fix="write the runtimes in the order slurm, container, direct")
        runtimes.append(runtime)
        if runtime == "slurm":
            launcher, slurm_words, rest = _slurm_part(rest, options)
            continue
        rest = options.take(rest, runtime, runtime)
        if rest[:1] == ["--"]:
            rest = rest[1:]
        elif rest:
            raise UsageError(f"{runtime}: {rest[0]!r} is not an option", fix=_MISSING_SEPARATOR)
    return CommandLine(
        tuple(rest), tuple(runtimes), launcher, slurm_words, options.settings(), options.config, options.replay, frozenset(options.given)
    )


def _slurm_part(words: Sequence[str], options: _Options) -> tuple[str, tuple[str, ...], list[str]]:
    """Return the launcher (empty: use the setting), Slurm's own options, and the words after the `--`."""
    rest = list(words)
    while rest and rest[0] in (*_PLAIN, "--debug"):
        rest = options.take(rest[:1], "main", "slurm") + rest[1:]
    launcher = rest.pop(0) if rest[:1] in (["srun"], ["sbatch"]) else ""
    if "--" not in rest:
        if options.given & {"--help"} or {"--help", "-h"} & set(rest):
            options.given.add("--help")
            return launcher, (), []
        raise UsageError("slurm: -- is missing between Slurm's options and the task", fix="primus-cli slurm srun -N 2 -- train pretrain")
    end = rest.index("--")
    cli_options = [word for word in rest[:end] if word in ("--dry-run", "--debug")]
    options.take(cli_options, "main", "slurm")
    return launcher, tuple(word for word in rest[:end] if word not in cli_options), rest[end + 1 :]


class _Options:
    """Collects the options while the words are parsed."""

    def __init__(self, environment: Mapping[str, str], *, replayed: bool) -> None:
        self.environment, self.replayed = environment, replayed
        self.config = ""
        self.replay = ""
        self.given: set[str] = set()
        self._flags: list[Given] = []

    def settings(self) -> tuple[Given, ...]:
        """Return the settings; `--env FILE` comes first, so that `--env NAME=VALUE` takes precedence."""
        return tuple(sorted(self._flags, key=lambda item: not item.origin.startswith("flag --env (")))

    def take(self, words: Sequence[str], runtime: str, where: str) -> list[str]:
        """Read options up to the first word that is not an option; return the rest."""
        rest = list(words)
        keys = flags_of(runtime)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            name = {"-h": "--help"}.get(name, name.replace("_", "-"))
            if name in _PLAIN:
                self.given.add(name)
            elif name in keys and _takes_no_value(keys[name], name):
                self._flags.append(_given(name, keys[name], partial(_switch_value, name=name, text=value if equals else "true")))
            elif name in keys or name in _WITH_VALUE:
                self._add(name, value if equals else _next(rest, name), keys)
            else:
                raise UsageError(
                    f"{where}: {word}: unknown option", fix=did_you_mean(name, [*keys, *_PLAIN, *_WITH_VALUE]) + _engine_hint(runtime)
                )
        return rest

    def _add(self, name: str, value: str, keys: Mapping[str, Key]) -> None:
        if name == "--config":
            self.config = value
        elif name == "--replay":
            self.replay = value
        elif keys[name].takes == "environment":
            self._flags.append(self._variable(value))
        else:
            self._flags.append(_given(name, keys[name], partial(_flag_value, text=value)))

    def _variable(self, word: str) -> Given:
        """Read the value of --env: NAME=VALUE, NAME, or a file."""
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment:
            return Given("direct.env", {assignment[1]: assignment[2]}, "flag --env")
        if _NAME.fullmatch(word) and word in self.environment:
            return Given("direct.env", {word: self.environment[word]}, "flag --env")
        variables = {} if self.replayed and not Path(word).is_file() else read_env_file(Path(word))
        return Given("direct.env", variables, f"flag --env ({word})")


def read_env_file(path: Path) -> dict[str, str]:
    """Read NAME=VALUE lines. `export ` before a name, quotes around a value, empty lines and # lines are allowed; nothing is executed.

    Raises:
        UsageError: The file cannot be read, or has another kind of line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fix = "give NAME=VALUE, the name of a variable that is set, or a readable file"
        raise UsageError(f"--env {path}: not NAME=VALUE, no variable of this name is set, and no such file: {error}", fix=fix) from error
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        assignment = _ASSIGNMENT.fullmatch(text[7:].lstrip() if text.startswith("export ") else text)
        if not assignment:
            raise UsageError(f"{path}:{number}: not a NAME=VALUE line", fix="write NAME=VALUE, or # at the start of a comment")
        variables[assignment[1]] = _unquoted(assignment[2])
    return variables


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value


def flags_of(runtime: str) -> dict[str, Key]:
    """Return the setting of each flag that a runtime accepts."""
    keys = [key for section in _SECTIONS[runtime] for key in schema().values() if key.section == section]
    flags: dict[str, Key] = {}
    for key in keys:
        for flag in (*key.flags, key.on_flag, key.off_flag):
            if flag:
                flags.setdefault(flag, key)
    return flags


def _takes_no_value(key: Key, name: str) -> bool:
    return key.type == "bool" or name in (key.on_flag, key.off_flag)


def _switch_value(key: Key, name: str, text: str) -> Any:
    on = name != key.off_flag
    if key.type == "choice":
        return "on" if on else "off"
    return from_text(key, text) if on else False


def _given(name: str, key: Key, read: Callable[[Key], Any]) -> Given:
    try:
        return Given(key.path, read(key), f"flag {name}")
    except SettingValueError as error:
        raise UsageError(f"{name}: {error.what}", fix=error.fix) from error


def _flag_value(key: Key, text: str) -> Any:
    """Return a flag's value; for a list it is one more item, and `[]` clears the list."""
    if key.type == "list":
        return [] if text == "[]" else [text]
    return from_text(key, text)


def _next(rest: list[str], name: str) -> str:
    if not rest or rest[0] == "--":
        raise UsageError(f"{name} needs a value", fix=f"write {name} VALUE or {name}=VALUE")
    return rest.pop(0)


def _engine_hint(runtime: str) -> str:
    return " (to pass an option to the engine: --engine-arg=--OPTION=VALUE)" if runtime == "container" else ""
