"""The words of a command line, taken apart.

    primus-cli [global] <runtime> [options] -- [<runtime> [options] --] <task> [arguments]

Nothing is looked up, started or judged beyond grammar. Options are the flags of data/settings.yml: what a runtime takes is stated
there once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.commandline.layered_settings import Given, WrongValueError, from_text, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.commandline.layered_settings import Key

RUNTIMES = ("direct", "container", "slurm")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SECTIONS = {"main": ("main",), "direct": ("main", "direct"), "container": ("main", "container", "direct"), "slurm": ()}
_PLAIN = ("--dry-run", "--strict", "--help", "--version", "--only-flags")
_WITH_VALUE = ("--config", "--replay")
_MAKES_NO_SENSE = "put -- between the options and the task: primus-cli direct -- train pretrain --config x.yaml"


@dataclass(frozen=True)
class CommandLine:
    """What the user asked for.

    `runtimes` is outermost first; `slurm_words` are Slurm's own options as they were typed; `words` are the task's (or a verb's).
    `flags` are settings; `config`, `replay` and `given` (--dry-run, --strict, --help, --version, --only-flags) are not.
    """

    words: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    slurm_launcher: str = ""
    slurm_words: tuple[str, ...] = ()
    flags: tuple[Given, ...] = ()
    config: str = ""
    replay: str = ""
    given: frozenset[str] = field(default_factory=frozenset)

    @property
    def runtime(self) -> str:
        """The outermost runtime, empty for a verb."""
        return self.runtimes[0] if self.runtimes else ""


def parse(words: Sequence[str], environment: Mapping[str, str], *, replayed: bool = False) -> CommandLine:
    """Take a command line apart.

    Args:
        words: What was typed after `primus-cli`.
        environment: Where `--env NAME` has its value.
        replayed: What `--env` named then may be gone: a snapshot has the values.

    Raises:
        UsageError: It has an unknown option, or a `--` is missing.
    """
    options = _Options(environment, replayed=replayed)
    rest = options.take(words, "main", "primus-cli")
    runtimes: list[str] = []
    launcher = ""
    slurm_words: tuple[str, ...] = ()
    while rest and rest[0] in RUNTIMES:
        runtime, *rest = rest
        if runtime in runtimes or (runtime == "slurm" and runtimes) or runtimes[-1:] == ["direct"]:
            raise UsageError(f"{runtime} cannot stand inside {runtimes[-1]}", fix="the order is: slurm, container, direct")
        runtimes.append(runtime)
        if runtime == "slurm":
            launcher, slurm_words, rest = _slurm_part(rest, options)
            continue
        rest = options.take(rest, runtime, runtime)
        if rest[:1] == ["--"]:
            rest = rest[1:]
        elif rest:
            raise UsageError(f"{runtime}: {rest[0]!r} is no option", fix=_MAKES_NO_SENSE)
    return CommandLine(
        tuple(rest), tuple(runtimes), launcher, slurm_words, options.settings(), options.config, options.replay, frozenset(options.given)
    )


def _slurm_part(words: Sequence[str], options: _Options) -> tuple[str, tuple[str, ...], list[str]]:
    """Return srun or sbatch (empty: the setting decides), Slurm's own options, and what follows the `--`."""
    rest = list(words)
    while rest and rest[0] in (*_PLAIN, "--debug"):
        rest = options.take(rest[:1], "main", "slurm") + rest[1:]
    launcher = rest.pop(0) if rest[:1] in (["srun"], ["sbatch"]) else ""
    if "--" not in rest:
        if options.given & {"--help"} or {"--help", "-h"} & set(rest):
            options.given.add("--help")
            return launcher, (), []
        raise UsageError("slurm: there is no -- between Slurm's options and the task", fix="primus-cli slurm srun -N 2 -- train pretrain")
    end = rest.index("--")
    own = [word for word in rest[:end] if word in ("--dry-run", "--debug")]
    options.take(own, "main", "slurm")
    return launcher, tuple(word for word in rest[:end] if word not in own), rest[end + 1 :]


class _Options:
    """The options met so far."""

    def __init__(self, environment: Mapping[str, str], *, replayed: bool) -> None:
        self.environment, self.replayed = environment, replayed
        self.config = ""
        self.replay = ""
        self.given: set[str] = set()
        self._flags: list[Given] = []

    def settings(self) -> tuple[Given, ...]:
        """Return the settings among them: files of variables first, so that NAME=VALUE wins over them."""
        return tuple(sorted(self._flags, key=lambda item: not item.origin.startswith("flag --env (")))

    def take(self, words: Sequence[str], runtime: str, where: str) -> list[str]:
        """Take options from the front; return the words from the first one that is none."""
        rest = list(words)
        known = _flags_of(runtime)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            name = {"-h": "--help"}.get(name, name.replace("_", "-"))
            if name in _PLAIN:
                self.given.add(name)
            elif name in known and _takes_no_value(known[name], name):
                self._flags.append(_given(name, known[name], partial(_switched, name=name, text=value if equals else "true")))
            elif name in known or name in _WITH_VALUE:
                self._keep(name, value if equals else _next(rest, name), known)
            else:
                raise UsageError(
                    f"{where}: {word}: no such option", fix=did_you_mean(name, [*known, *_PLAIN, *_WITH_VALUE]) + _engine_hint(runtime)
                )
        return rest

    def _keep(self, name: str, value: str, known: Mapping[str, Key]) -> None:
        if name == "--config":
            self.config = value
        elif name == "--replay":
            self.replay = value
        elif known[name].takes == "environment":
            self._flags.append(self._variable(value))
        else:
            self._flags.append(_given(name, known[name], partial(_flag_value, text=value)))

    def _variable(self, word: str) -> Given:
        """Read NAME=VALUE, NAME, or a file."""
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment:
            return Given("direct.env", {assignment[1]: assignment[2]}, "flag --env")
        if _NAME.fullmatch(word) and word in self.environment:
            return Given("direct.env", {word: self.environment[word]}, "flag --env")
        found = {} if self.replayed and not Path(word).is_file() else read_env_file(Path(word))
        return Given("direct.env", dict(found), f"flag --env ({word})")


def read_env_file(path: Path) -> dict[str, str]:
    """Read NAME=VALUE lines; `export ` in front, quotes around the value, empty lines and # lines are fine. Nothing is executed.

    Raises:
        UsageError: It cannot be read, or has another line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fix = "give NAME=VALUE, the name of a variable that is set, or a readable file"
        raise UsageError(f"--env {path}: neither NAME=VALUE, nor a variable that is set, nor a file: {error}", fix=fix) from error
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        assignment = _ASSIGNMENT.fullmatch(text[7:].lstrip() if text.startswith("export ") else text)
        if not assignment:
            raise UsageError(f"{path}:{number}: this is no NAME=VALUE line", fix="write NAME=VALUE, or # in front")
        variables[assignment[1]] = _unquoted(assignment[2])
    return variables


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value


def _flags_of(runtime: str) -> dict[str, Key]:
    keys = [key for section in _SECTIONS[runtime] for key in schema().values() if key.section == section]
    flags: dict[str, Key] = {}
    for key in keys:
        for flag in (*key.flags, key.on_flag, key.off_flag):
            if flag:
                flags.setdefault(flag, key)
    return flags


def _takes_no_value(key: Key, name: str) -> bool:
    return key.type == "bool" or name in (key.on_flag, key.off_flag)


def _switched(key: Key, name: str, text: str) -> Any:
    on = name != key.off_flag
    if key.type == "choice":
        return "on" if on else "off"
    return from_text(key, text) if on else False


def _given(name: str, key: Key, read: Callable[[Key], Any]) -> Given:
    """Return what a flag gives."""
    try:
        return Given(key.path, read(key), f"flag {name}")
    except WrongValueError as error:
        what, _, fix = str(error).partition("\n  fix: ")
        raise UsageError(f"{name}: {what}", fix=fix) from error


def _flag_value(key: Key, text: str) -> Any:
    """Return a flag's value; for a list it is one more item, and `[]` clears what the layers below say."""
    if key.type == "list":
        return [] if text == "[]" else [text]
    return from_text(key, text)


def _next(rest: list[str], name: str) -> str:
    if not rest or rest[0] == "--":
        raise UsageError(f"{name} needs a value", fix=f"write {name} VALUE or {name}=VALUE")
    return rest.pop(0)


def _engine_hint(runtime: str) -> str:
    return " (an option of the engine itself: --engine-arg=--OPTION=VALUE)" if runtime == "container" else ""
