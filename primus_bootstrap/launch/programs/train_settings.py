"""The settings of the training programs: check the files and arguments of a run before anything is started or queued.

Names, types, choices and limits are those of workloads/train/settings.py. The trainer itself also checks values against each other.
"""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.launch.programs.declarations import Module, UnreadableError
from primus_bootstrap.launch.self_exec import read_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.programs.settings_file import Given

_FILE = "train/settings.py"
_SECTION, _TUPLE = "section", "tuple"


@dataclass(frozen=True)
class Known:
    """One setting. `kind` is int, float, bool, str or tuple; `choices` are the only values, if there are any."""

    kind: str
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)  # by the names in _LIMITS

    @property
    def type_name(self) -> str:
        """The type in the help."""
        return " | ".join(self.choices) or {_TUPLE: "list of strings"}.get(self.kind, self.kind)


def known_settings(workloads: Path) -> dict[str, Known]:
    """Return every setting by its dotted name; none if the programs below `workloads` declare them in another way."""
    try:
        return dict(_settings_of(Module(partial(read_program, workloads), _FILE), "Settings", ""))
    except UnreadableError:
        return {}


def sections(workloads: Path) -> frozenset[str]:
    """Return the sections of the settings."""
    return frozenset(name.partition(".")[0] for name in known_settings(workloads) if "." in name)


def _settings_of(module: Module, name: str, prefix: str) -> Iterator[tuple[str, Known]]:
    for declared in module.fields(name):
        path = f"{prefix}{declared.name}"
        if declared.function == _SECTION:
            yield from _settings_of(module, str(declared.arguments[0]), f"{path}.")
        else:
            default, meaning = declared.arguments
            kind, choices = _kind(declared.kind)
            yield path, Known(kind, default, meaning, choices, declared.keywords)


def _kind(annotation: ast.expr) -> tuple[str, tuple[str, ...]]:
    """Return the type of `int`, `tuple[str, ...]` or `Literal["a", "b"]`, and the choices of the latter."""
    if not isinstance(annotation, ast.Subscript):
        return ast.unparse(annotation), ()
    kind = ast.unparse(annotation.value)
    if kind != "Literal":
        return kind, ()
    choices = ast.literal_eval(annotation.slice)
    return "str", choices if isinstance(choices, tuple) else (choices,)


def problems(known: Mapping[str, Known], given: Sequence[Given]) -> list[UsageError]:
    """Return an error for each unknown name and each value that does not fit."""
    found = []
    for item in given:
        what, fix = problem(known, item.name, item.value)
        if what:
            found.append(UsageError(f"{item.where}: {item.name}: {what}", fix=fix))
    return found


def problem(known: Mapping[str, Known], name: str, value: Any) -> tuple[str, str]:
    """Return what is wrong with a setting, and the fix; two empty texts if it is right."""
    if name not in known:
        return _unknown(name, known)
    setting = known[name]
    if setting.choices:
        return ("", "") if value in setting.choices else (f"found {value!r}", f"choose from: {', '.join(setting.choices)}")
    fits = _FITS.get(setting.kind)
    if fits is not None and not fits(value):
        return f"found {value!r}", f"give {_EXPECTED[setting.kind]}"
    limits = {name: limit for name, limit in setting.limits.items() if name in _LIMITS}
    if all(_LIMITS[name][0](float(value), limit) for name, limit in limits.items()):
        return "", ""
    return f"found {value!r}", f"give {' and '.join(_LIMITS[name][1].format(limit) for name, limit in limits.items())}"


def _unknown(name: str, known: Mapping[str, Known]) -> tuple[str, str]:
    inside = [other for other in known if other.startswith(f"{name}.")]
    if inside:
        return "a section, not a setting", f"set one of: {', '.join(inside)}"
    last = name.rpartition(".")[2]
    near = nearest(name, known) or next((other for other in known if other.rpartition(".")[2] == last), "")
    fix = f"did you mean {near}?" if near else "`primus-cli direct -- train pretrain --help` lists every setting"
    return "no such setting", fix


# By the name of a limit: whether a number meets it, and its words; as in workloads/train/load_settings.py.
_LIMITS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (operator.ge, "{} or more"),
    "above": (operator.gt, "more than {}"),
    "at_most": (operator.le, "at most {}"),
    "below": (operator.lt, "less than {}"),
}


# The types as the trainer reads them: it converts texts, because YAML reads 3e-4 as one.
def _is_number(value: Any, kind: type[int | float]) -> bool:
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        return False
    try:
        return math.isfinite(kind(value))
    except (TypeError, ValueError):
        return False


def _is_list(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


_FITS = {
    "int": lambda value: _is_number(value, int),
    "float": lambda value: _is_number(value, float),
    "bool": lambda value: str(value).lower() in ("true", "false"),
    "str": lambda value: isinstance(value, (str, int, float)),
    _TUPLE: _is_list,
}
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": 'a text; "" for an empty one',
    _TUPLE: "a list of texts (as an argument: separated by commas)",
}
