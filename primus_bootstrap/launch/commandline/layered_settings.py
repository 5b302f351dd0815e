"""Settings in layers, merged key by key; every value keeps its origin.

built-in < system < user < project < --config < environment < flags
"""

from __future__ import annotations

import os
import pkgutil
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SYSTEM_FILE = Path("/etc/primus/cli.yaml")
FILE_NAME = ".primus.yaml"
PREFIX = "PRIMUS_CLI_"
BUILT_IN = "built-in"


class WrongValueError(Exception):
    """A value that its key does not take; the text ends in a fix."""


@dataclass(frozen=True)
class Key:
    """One setting of data/settings.yml."""

    section: str
    name: str
    type: str
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    auto: bool = False
    flags: tuple[str, ...] = ()
    on_flag: str = ""
    off_flag: str = ""
    takes: str = ""

    @property
    def path(self) -> str:
        """The key as it is named in messages, like direct.nproc."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable of the setting."""
        return f"{PREFIX}{self.section}_{self.name}".upper()


@dataclass(frozen=True)
class Given:
    """One value that a layer gives, with where it stands; one that `replaces` is not added to what lists and maps have from below."""

    path: str
    value: Any
    origin: str
    replaces: bool = False


@dataclass(frozen=True)
class Setting:
    """A value that holds. `origin` has every layer that added to it; `origins` has the one layer of each key of a map."""

    path: str
    value: Any
    origin: str
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """All settings, resolved."""

    items: Mapping[str, Setting] = field(default_factory=dict)

    def __getitem__(self, path: str) -> Any:
        """Return the value of a key like direct.nproc."""
        return self.items[path].value

    def origin(self, path: str) -> str:
        """Return where the value of a key comes from."""
        return self.items[path].origin


@dataclass(frozen=True)
class Places:
    """The settings files of a user who stands in a folder; None where there is none."""

    system: Path | None
    user: Path | None
    project: Path | None
    config: Path | None

    def named(self) -> Iterator[tuple[str, Path]]:
        """Return the layers that have a file, lowest first."""
        for layer in ("system", "user", "project", "config"):
            path = getattr(self, layer)
            if path is not None:
                yield layer, path


@cache
def schema() -> Mapping[str, Key]:
    """Return every key by its path."""
    text = pkgutil.get_data("primus_bootstrap.launch", "data/settings.yml")
    return {
        f"{section}.{name}": _key(section, name, facts)
        for section, keys in yaml.safe_load(text or b"").items()
        for name, facts in keys.items()
    }


def _key(section: str, name: str, facts: Mapping[str, Any]) -> Key:
    own = () if facts.get("no_flag") or facts.get("on_flag") else (f"--{name.replace('_', '-')}",)
    return Key(
        section,
        name,
        facts["type"],
        facts["default"],
        facts["meaning"],
        choices=tuple(facts.get("choices", ())),
        auto=bool(facts.get("auto")),
        flags=(*own, *facts.get("flags", ())),
        on_flag=str(facts.get("on_flag", "")),
        off_flag=str(facts.get("off_flag", "")),
        takes=str(facts.get("takes", "")),
    )


def find_places(environment: Mapping[str, str], folder: Path, config: str = "") -> Places:
    """Find the settings files: /etc/primus/cli.yaml, ~/.primus.yaml, and the nearest .primus.yaml from the working folder upwards."""
    home = Path(environment["HOME"]) if environment.get("HOME") else None
    user = home / FILE_NAME if home else None
    project = next((parent / FILE_NAME for parent in (folder, *folder.parents) if (parent / FILE_NAME).is_file()), None)
    if config and not Path(config).is_file():
        raise UsageError(f"--config {config}: there is no such file", fix="give the path of a YAML file")
    return Places(
        system=SYSTEM_FILE if SYSTEM_FILE.is_file() else None,
        user=user if user and user.is_file() else None,
        project=project if project != user else None,
        config=Path(config) if config else None,
    )


def resolve(places: Places, environment: Mapping[str, str], flags: Sequence[Given] = ()) -> Settings:
    """Merge all layers.

    Raises:
        UsageError: Any layer has an unknown key or a value of the wrong kind; all problems at once.
    """
    problems: list[str] = []
    given: list[Given] = []
    for layer, path in places.named():
        given.extend(_read_file(layer, path, problems))
    given.extend(_read_environment(environment, problems))
    given.extend(flags)
    items = {key.path: Setting(key.path, key.default, BUILT_IN) for key in schema().values()}
    for item in given:
        try:
            items[item.path] = _merge(schema()[item.path], items[item.path], item)
        except WrongValueError as error:
            problems.append(f"{item.origin}: {item.path}: {error}")
    if problems:
        last, _, fix = problems[-1].rpartition("\n  fix: ")
        raise UsageError("\n".join((*problems[:-1], last)), fix=fix)
    return Settings(items)


def _read_file(layer: str, path: Path, problems: list[str]) -> list[Given]:
    try:
        text, owner = _read_text(path)
        if layer in ("user", "project") and owner not in (0, os.geteuid()):
            fix = f"remove it, work in another folder, or name the file if you trust it: --config {path}"
            problems.append(f"{path}: belongs to the account number {owner}; settings of other accounts are not used\n  fix: {fix}")
            return []
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"{path}: cannot be read: {error}\n  fix: write it as YAML: section, then key: value")
        return []
    if data is None:
        return []
    if not isinstance(data, dict):
        problems.append(f"{path}:1: sections are expected\n  fix: {did_you_mean('', _sections())}")
        return []
    given: list[Given] = []
    met = Counter(str(node.value) for node, _ in getattr(tree, "value", ()))
    for section_node, body_node in getattr(tree, "value", ()):
        section = str(section_node.value)
        where = f"{path}:{section_node.start_mark.line + 1}"
        if met[section] > 1:
            problems.append(f"{where}: {section} is there more than once\n  fix: put all of its keys below one of them")
        elif section not in _sections():
            problems.append(f"{where}: {section}: no such section\n  fix: {did_you_mean(section, _sections())}")
        elif isinstance(data[section], dict):
            given.extend(_read_section(layer, path, (section, body_node, data[section]), problems))
        elif data[section] is not None:
            problems.append(f"{where}: {section}: keys are expected\n  fix: write `key: value` lines below it")
    return given


def _read_text(path: Path) -> tuple[str, int]:
    """Return a file's text and the number of its owner, both of the file that was opened.

    Settings name programs and variables. A file that another account put into a folder above, such as /tmp, must not decide what root runs.
    """
    # O_NONBLOCK: a named pipe put in its place must not hold a program of root's.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read().decode("utf-8"), os.fstat(file.fileno()).st_uid


def _read_section(layer: str, path: Path, part: tuple[str, Any, Mapping[str, Any]], problems: list[str]) -> Iterator[Given]:
    section, body_node, values = part
    seen: set[str] = set()
    for key_node, value_node in body_node.value:
        name, where = str(key_node.value), f"{path}:{key_node.start_mark.line + 1}"
        known = f"{section}.{name}" in schema()
        if not known:
            problems.append(f"{where}: {section}.{name}: no such setting\n  fix: {did_you_mean(name, _names(section))}")
        elif name in seen:
            problems.append(f"{where}: {section}.{name} is there twice\n  fix: keep one of them")
        else:
            value = values[name]
            if schema()[f"{section}.{name}"].takes == "environment" and isinstance(value, dict):
                value = {**value, **_numbers_as_written(value_node)}
            yield Given(f"{section}.{name}", value, f"{layer} {where}")
        seen.add(name)


def _numbers_as_written(node: Any) -> dict[str, str]:
    """Return a map's numbers and dates as they stand in the file: a variable of 010 or 1.30 is neither 8 nor 1.3."""
    kinds = ("int", "float", "timestamp")
    return {str(key.value): str(value.value) for key, value in node.value if value.tag in {f"tag:yaml.org,2002:{kind}" for kind in kinds}}


def _read_environment(environment: Mapping[str, str], problems: list[str]) -> Iterator[Given]:
    by_variable = {key.variable: key for key in schema().values()}
    if environment.get("DOCKER_IMAGE"):
        yield Given("container.image", environment["DOCKER_IMAGE"], "environment DOCKER_IMAGE")
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        key = by_variable.get(variable)
        if key is None:
            problems.append(f"environment: {variable}: no such setting\n  fix: {did_you_mean(variable, by_variable)}")
            continue
        try:
            yield Given(key.path, from_text(key, environment[variable]), f"environment {variable}")
        except WrongValueError as error:
            problems.append(f"environment {variable}: {error}")


def from_text(key: Key, text: str) -> Any:
    """Turn the text of a variable or flag into a value of the key's kind; a text of the wrong kind is judged by the merge."""
    if key.type == "bool":
        if text.lower() not in _BOOLEANS:
            raise WrongValueError(f"{text!r} is neither true nor false\n  fix: give true or false")
        return _BOOLEANS[text.lower()]
    if key.type == "int" and text.lstrip("-").isdecimal():
        return int(text)
    if key.type == "list":
        return _from_yaml(key, text) if text.startswith("[") else [text] if text else []
    if key.type == "map":
        return _from_yaml(key, text) if text else {}
    return text


def _from_yaml(key: Key, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        example = "[a, b]" if key.type == "list" else "{NAME: value}"
        raise WrongValueError(f"this is no YAML: {what}\n  fix: write {_WORDS[key.type]}, like {example}") from error


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False, "": False}


def _merge(key: Key, below: Setting, item: Given) -> Setting:
    value = checked(key, item.value)
    if item.replaces:
        below = Setting(key.path, None, BUILT_IN)
    both = f"{below.origin} + {item.origin}" if below.value and below.origin != item.origin else item.origin
    if key.type == "list" and value and below.value:
        return Setting(key.path, [*below.value, *value], both)
    if key.type == "map":
        merged = {name: entry for name, entry in {**(below.value or {}), **value}.items() if entry is not None}
        origins = {**below.origins, **dict.fromkeys(value, item.origin)}
        return Setting(key.path, merged, both, {name: origins[name] for name in merged})
    return Setting(key.path, value, item.origin)


def checked(key: Key, value: Any) -> Any:
    """Return the value in the key's kind.

    Raises:
        WrongValueError: It is of another kind; the text ends in a fix.
    """
    if key.auto and value == "auto":
        return value
    if key.type in ("choice", "str", "path"):
        return _checked_text(key, value)
    kinds: dict[str, type[Any]] = {"int": int, "bool": bool, "list": list, "map": dict}
    if not isinstance(value, kinds[key.type]) or (key.type == "int" and isinstance(value, bool)):
        choice = " or auto" if key.auto else ""
        raise WrongValueError(f"{_WORDS[key.type]}{choice} is expected, {value!r} is none\n  fix: {key.meaning}")
    if key.type == "int" and value < 0:
        raise WrongValueError(f"{value} is below 0\n  fix: {key.meaning}")
    if key.type == "list":
        return [_checked_text(key, item) for item in value]
    if key.type == "map":
        _check_map(value)
    return value


_WORDS = {"int": "a number", "bool": "true or false", "list": "a list", "map": "a mapping"}


def _checked_text(key: Key, value: Any) -> str:
    if key.type == "choice":
        value = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) and "on" in key.choices else value
        if value not in key.choices:
            raise WrongValueError(f"{value!r} is not one of its values\n  fix: {did_you_mean(str(value), key.choices)}")
    if not isinstance(value, str):
        raise WrongValueError(f"a text is expected, {value!r} is none\n  fix: quote it")
    return value


def _check_map(value: Mapping[Any, Any]) -> None:
    for name, entry in value.items():
        if not isinstance(name, str) or isinstance(entry, (dict, list)):
            raise WrongValueError(f"{name}: one value is expected, {entry!r} is none\n  fix: write NAME: value")


def _sections() -> set[str]:
    return {key.section for key in schema().values()}


def _names(section: str) -> list[str]:
    return [key.name for key in schema().values() if key.section == section]


def unknown_names(data: Mapping[str, Any]) -> str:
    """Return the first section or key of plain data that does not exist, with a fix; empty where all do."""
    for section, keys in data.items():
        if section not in _sections():
            return f"{section}: no such section\n  fix: {did_you_mean(section, _sections())}"
        if not isinstance(keys, dict):
            return f"{section}: keys are expected\n  fix: write `key: value` lines below it"
        for name in keys:
            if f"{section}.{name}" not in schema():
                return f"{section}.{name}: no such setting\n  fix: {did_you_mean(name, _names(section))}"
    return ""


def shown(settings: Settings, paths: Iterable[str] | None = None) -> list[Setting]:
    """Return settings in the order of the schema."""
    wanted = None if paths is None else set(paths)
    return [settings.items[path] for path in schema() if wanted is None or path in wanted]


def standing_in() -> Path:
    """Return the working folder.

    Raises:
        UsageError: It was deleted below us.
    """
    try:
        return Path(os.getcwd())  # noqa: PTH109 - Path.cwd() is the same call; named here because it can fail
    except FileNotFoundError as error:
        raise UsageError("the working folder is gone", fix="change into a folder that exists") from error
