"""Merge configuration files and `key=value` arguments into settings. Report all problems at once, each with its location and fix."""

from __future__ import annotations

import difflib
import json
import math
import operator
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from workloads.common.errors import SettingsError
from workloads.train.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PRESETS = Path(__file__).resolve().parents[1] / "presets"


@dataclass(frozen=True, slots=True)
class Given:
    """One value from the user. `location` is `file:line` or `argument`."""

    key: str
    value: Any
    location: str


@dataclass(frozen=True, slots=True)
class Known:
    """One existing setting."""

    key: str
    kind: Any
    default: Any
    meaning: str
    limits: Mapping[str, float]


def known_settings(kind: type[Any] = Settings, prefix: str = "") -> Iterator[Known]:
    """Yield every setting, in the order of the classes."""
    hints = typing.get_type_hints(kind)
    for entry in fields(kind):
        if is_dataclass(hints[entry.name]):
            yield from known_settings(hints[entry.name], f"{prefix}{entry.name}.")
        else:
            yield Known(f"{prefix}{entry.name}", hints[entry.name], entry.default, entry.metadata["meaning"], entry.metadata["limits"])


def load_settings(files: Sequence[str], arguments: Sequence[str]) -> Settings:
    """Return the settings: arguments override files, later files override earlier ones, and files override the defaults.

    Raises:
        SettingsError: Settings are unknown, or have values of the wrong type or outside their limits.
    """
    known = {entry.key: entry for entry in known_settings()}
    given = [value for file in files for value in _read_file(find_file(file))] + [_read_argument(argument) for argument in arguments]
    values: dict[str, Any] = {}
    problems: list[str] = []
    for entry in given:
        try:
            values[entry.key] = _convert(entry, known)
        except SettingsError as error:
            problems.append(f"{entry.location}: {error.what}\n  fix: {error.fix}")
    if problems:
        raise SettingsError("\n".join(problems), fix="correct each line above; `--help` lists every setting; nothing was started")
    settings: Settings = _build(Settings, values)
    return settings


def find_file(name: str) -> Path:
    """Return the file with this path, or the preset with this name."""
    path = Path(name)
    if path.is_file():
        return path
    presets = sorted(file.stem for file in PRESETS.glob("*.yaml"))
    if name in presets:
        return PRESETS / f"{name}.yaml"
    near = difflib.get_close_matches(name, presets, n=1)
    fix = f"did you mean {near[0]}?" if near else f"give a path, or one of the presets: {', '.join(presets)}"
    raise SettingsError(f"{name}: no such file or preset", fix=fix)


def _read_file(path: Path) -> list[Given]:
    if path.suffix == ".json":
        try:
            tree = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise SettingsError(f"{path}: not JSON: {error}", fix="correct the file") from error
        if not isinstance(tree, dict):
            raise SettingsError(f"{path}: the file is not a mapping", fix='write {"section": {"name": value}}')
        return list(_walk_json(tree, "", str(path)))
    return _read_yaml(path)


def _walk_json(tree: dict[str, Any], prefix: str, location: str) -> Iterator[Given]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _walk_json(value, f"{prefix}{key}.", location)
        else:
            yield Given(f"{prefix}{key}", value, location)


def _read_yaml(path: Path) -> list[Given]:
    try:
        import yaml  # noqa: PLC0415 - JSON configurations work without PyYAML
    except ImportError as error:
        raise SettingsError(f"{path}: PyYAML is not installed", fix="pip install PyYAML, or use a JSON configuration") from error
    loader = yaml.SafeLoader(path.read_text("utf-8"))
    try:
        node = loader.get_single_node()
        return [] if node is None else list(_walk_yaml(loader, node, "", path))
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not YAML: {error}", fix="correct the file") from error
    finally:
        loader.dispose()


def _walk_yaml(loader: Any, node: Any, prefix: str, path: Path) -> Iterator[Given]:
    if node.id != "mapping":
        raise SettingsError(
            f"{path}:{node.start_mark.line + 1}: {prefix or 'the file'} is not a mapping", fix="write `section:` and below it `name: value`"
        )
    keys: set[str] = set()
    for key_node, value_node in node.value:
        key, location = f"{prefix}{key_node.value}", f"{path}:{key_node.start_mark.line + 1}"
        if key in keys:
            raise SettingsError(f"{location}: {key} is set twice", fix="remove one of the two lines")
        keys.add(key)
        if value_node.id == "mapping":
            yield from _walk_yaml(loader, value_node, f"{key}.", path)
        else:
            yield Given(key, loader.construct_object(value_node, deep=True), location)


def _read_argument(argument: str) -> Given:
    key, equals, value = argument.partition("=")
    if not equals:
        raise SettingsError(f"argument {argument!r}: `=` is missing", fix="write key=value, for example train.steps=100")
    return Given(key, value, f"argument {argument!r}")


def _convert(given: Given, known: dict[str, Known]) -> Any:
    if given.key in known:
        value = _convert_value(given, known[given.key].kind)
        _check_limits(given.key, value, known[given.key].limits)
        return value
    if any(key.startswith(f"{given.key}.") for key in known):
        raise SettingsError(
            f"{given.key} is a section, not a setting", fix=f"set one of: {', '.join(k for k in known if k.startswith(given.key + '.'))}"
        )
    near = difflib.get_close_matches(given.key, known, n=1, cutoff=0.5) or [
        key for key in known if key.split(".")[-1] == given.key.split(".")[-1]
    ]
    raise SettingsError(f"{given.key}: no such setting", fix=f"did you mean {near[0]}?" if near else "see `--help` for every setting")


def _convert_value(given: Given, kind: Any) -> Any:
    value = given.value
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise SettingsError(f"{given.key} is {value!r}", fix=f"choose from: {', '.join(get_args(kind))}")
    if get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return tuple(item for item in items if item)
        raise SettingsError(f"{given.key} is {value!r}", fix="give a list of strings (as an argument: separated by commas)")
    if kind is str:
        if isinstance(value, str | int | float):
            return str(value)
        raise SettingsError(f"{given.key} is {value!r}", fix='give a string; "" for an empty one')
    if kind is bool:
        return _convert_bool(given)
    return _convert_number(given, kind)


def _convert_bool(given: Given) -> bool:
    known = {"true": True, "false": False}
    text = str(given.value).lower()
    if text in known:
        return known[text]
    raise SettingsError(f"{given.key} is {given.value!r}", fix="give true or false")


def _convert_number(given: Given, kind: type[int | float]) -> int | float:
    """Convert a number. Strings are accepted, because YAML 1.1 reads 3e-4 as a string."""
    expected = {int: "a whole number", float: "a number"}[kind]
    if isinstance(given.value, bool) or (kind is int and isinstance(given.value, float)):
        raise SettingsError(f"{given.key} is {given.value!r}", fix=f"give {expected}")
    try:
        number = kind(given.value)
    except (TypeError, ValueError):
        raise SettingsError(f"{given.key} is {given.value!r}", fix=f"give {expected}") from None
    if not math.isfinite(number):
        raise SettingsError(f"{given.key} is {given.value!r}", fix=f"give {expected}")
    return number


# By the name of a limit: whether a number meets it, and its words.
_LIMITS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (operator.ge, "{} or more"),
    "above": (operator.gt, "more than {}"),
    "at_most": (operator.le, "at most {}"),
    "below": (operator.lt, "less than {}"),
}


def _check_limits(key: str, value: Any, limits: Mapping[str, float]) -> None:
    if not all(_LIMITS[name][0](value, limit) for name, limit in limits.items()):
        expected = " and ".join(_LIMITS[name][1].format(limit) for name, limit in limits.items())
        raise SettingsError(f"{key} is {value}", fix=f"give {expected}")


def _build(kind: type[Any], values: dict[str, Any], prefix: str = "") -> Any:
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for entry in fields(kind):
        key = f"{prefix}{entry.name}"
        if is_dataclass(hints[entry.name]):
            arguments[entry.name] = _build(typing.cast("type[Any]", hints[entry.name]), values, f"{key}.")
        elif key in values:
            arguments[entry.name] = values[key]
    return kind(**arguments)


def value_of(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key in a tree of settings, or None."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def kind_name(kind: Any) -> str:
    """Return a setting's type for the help."""
    if get_origin(kind) is Literal:
        return " | ".join(get_args(kind))
    return "list of strings" if isinstance(kind, types.GenericAlias) else str(kind.__name__)
