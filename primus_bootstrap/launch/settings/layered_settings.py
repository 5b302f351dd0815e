"""Merge the settings of all layers key by key and record the origin of every value.

Layers, weakest first: built-in, system, user, project, --config, environment, flags.
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

from primus_bootstrap.core.errors import PlanError, UsageError, joined
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.programs import train_settings
from primus_bootstrap.launch.programs.settings_file import refuse_primus_experiment
from primus_bootstrap.launch.self_exec import workloads_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SYSTEM_FILE = Path("/etc/primus/cli.yaml")
FILE_NAME = ".primus.yaml"
PREFIX = "PRIMUS_CLI_"
BUILT_IN = "built-in"


class SettingValueError(UsageError):
    """A setting has a value of the wrong type or outside its range."""


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
        """The name in messages, for example direct.nproc."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable of the setting."""
        return f"{PREFIX}{self.section}_{self.name}".upper()


@dataclass(frozen=True)
class Given:
    """One value of one layer, with its origin. `replaces`: do not merge it with the list or map of the layers below."""

    path: str
    value: Any
    origin: str
    replaces: bool = False


@dataclass(frozen=True)
class Setting:
    """A merged value. `origin` names every layer that contributed; `origins` names the layer of each key of a map."""

    path: str
    value: Any
    origin: str
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """All settings, merged."""

    items: Mapping[str, Setting] = field(default_factory=dict)

    def __getitem__(self, path: str) -> Any:
        """Return the value of a key, for example direct.nproc."""
        return self.items[path].value

    def origin(self, path: str) -> str:
        """Return the origin of a value."""
        return self.items[path].origin


@dataclass(frozen=True)
class SettingsFiles:
    """The settings file of each layer; None if there is none."""

    system: Path | None = None
    user: Path | None = None
    project: Path | None = None
    config: Path | None = None

    def existing(self) -> Iterator[tuple[str, Path]]:
        """Yield each layer that has a file, weakest first."""
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
    flag = () if facts.get("no_flag") or facts.get("on_flag") else (f"--{name.replace('_', '-')}",)
    return Key(
        section,
        name,
        facts["type"],
        facts["default"],
        facts["meaning"],
        choices=tuple(facts.get("choices", ())),
        auto=bool(facts.get("auto")),
        flags=(*flag, *facts.get("flags", ())),
        on_flag=str(facts.get("on_flag", "")),
        off_flag=str(facts.get("off_flag", "")),
        takes=str(facts.get("takes", "")),
    )


def find_files(environment: Mapping[str, str], folder: Path, config: str = "") -> SettingsFiles:
    """Find /etc/primus/cli.yaml, ~/.primus.yaml, and the nearest .primus.yaml in `folder` or a folder above it."""
    user = Path(environment["HOME"]) / FILE_NAME if environment.get("HOME") else None
    project = next((parent / FILE_NAME for parent in (folder, *folder.parents) if (parent / FILE_NAME).is_file()), None)
    if config and not Path(config).is_file():
        raise UsageError(f"--config {config}: file not found", fix="give the path of a YAML file")
    return SettingsFiles(
        system=SYSTEM_FILE if SYSTEM_FILE.is_file() else None,
        user=user if user and user.is_file() else None,
        project=project if project != user else None,
        config=Path(config) if config else None,
    )


def resolve(files: SettingsFiles, environment: Mapping[str, str], flags: Sequence[Given] = ()) -> Settings:
    """Merge all layers.

    Raises:
        UsageError: A layer has an unknown key or a wrong value; the message lists all problems.
    """
    problems: list[UsageError] = []
    given: list[Given] = []
    for layer, path in files.existing():
        given.extend(_read_file(layer, path, problems))
    given.extend(_read_environment(environment, problems))
    given.extend(flags)
    items = {key.path: Setting(key.path, key.default, BUILT_IN) for key in schema().values()}
    for item in given:
        try:
            items[item.path] = _merge(schema()[item.path], items[item.path], item)
        except SettingValueError as error:
            problems.append(UsageError(f"{item.origin}: {item.path}: {error.what}", fix=error.fix))
    if problems:
        raise joined(problems)
    return Settings(items)


def _read_file(layer: str, path: Path, problems: list[UsageError]) -> list[Given]:
    try:
        text, owner = _read_text(path)
        if layer in ("user", "project") and owner not in (0, os.geteuid()):
            fix = f"remove it, change to another folder, or, if you trust the file, pass --config {path}"
            problems.append(UsageError(f"{path}: owned by another account (uid {owner}); its settings are not used", fix=fix))
            return []
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(UsageError(f"{path}: cannot be read: {error}", fix="write it as YAML: section, then key: value"))
        return []
    if data is None:
        return []
    if not isinstance(data, dict):
        problems.append(UsageError(f"{path}:1: the file does not consist of sections", fix=did_you_mean("", _sections())))
        return []
    refuse_primus_experiment(data, str(path))
    given: list[Given] = []
    count = Counter(str(node.value) for node, _ in getattr(tree, "value", ()))
    for section_node, body_node in getattr(tree, "value", ()):
        section = str(section_node.value)
        where = f"{path}:{section_node.start_mark.line + 1}"
        if count[section] > 1:
            problems.append(UsageError(f"{where}: duplicate section {section}", fix="move all of its keys into one section"))
        elif section not in _sections():
            problems.append(_training_section(section, path, where) or _unknown_section(section, f"{where}: "))
        elif isinstance(data[section], dict):
            given.extend(_read_section(layer, path, (section, body_node, data[section]), problems))
        elif data[section] is not None:
            problems.append(_not_a_section(section, f"{where}: "))
    return given


def _unknown_section(section: str, where: str = "") -> UsageError:
    return UsageError(f"{where}unknown section: {section}", fix=did_you_mean(section, _sections()))


def _training_section(section: str, path: Path, where: str) -> UsageError | None:
    """Return the error for a section of the training settings; None for another section."""
    try:
        known = train_settings.sections(workloads_folder("", os.environ))
    except PlanError:  # the training programs are not installed
        return None
    if section not in known:
        return None
    fix = f"pass a file with training settings after the task: -- train pretrain --config {path}"
    return UsageError(f"{where}: {section} is a section of the training settings, not of primus-cli", fix=fix)


def _not_a_section(section: str, where: str = "") -> UsageError:
    return UsageError(f"{where}{section} has no keys", fix="write `key: value` lines below it")


def _unknown_key(section: str, name: str, where: str = "") -> UsageError:
    return UsageError(f"{where}unknown setting: {section}.{name}", fix=did_you_mean(name, _names(section)))


def _read_text(path: Path) -> tuple[str, int]:
    """Return the text and the owner (uid) of the same open file.

    Settings name programs and variables, so root must not use a file that another account created in a folder above, such as /tmp.
    """
    # O_NONBLOCK: opening a named pipe must not block.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read().decode("utf-8"), os.fstat(file.fileno()).st_uid


def _read_section(layer: str, path: Path, part: tuple[str, Any, Mapping[str, Any]], problems: list[UsageError]) -> Iterator[Given]:
    section, body_node, values = part
    names: set[str] = set()
    for key_node, value_node in body_node.value:
        name, where = str(key_node.value), f"{path}:{key_node.start_mark.line + 1}"
        if f"{section}.{name}" not in schema():
            problems.append(_unknown_key(section, name, f"{where}: "))
        elif name in names:
            problems.append(UsageError(f"{where}: duplicate setting {section}.{name}", fix="remove one of the two lines"))
        else:
            value = values[name]
            if schema()[f"{section}.{name}"].takes == "environment" and isinstance(value, dict):
                value = {**value, **_source_text_of_numbers(value_node)}
            yield Given(f"{section}.{name}", value, f"{layer} {where}")
        names.add(name)


def _source_text_of_numbers(node: Any) -> dict[str, str]:
    """Return a map's numbers and dates as written in the file: YAML reads 010 as 8 and 1.30 as 1.3."""
    tags = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp")}
    return {str(key.value): str(value.value) for key, value in node.value if value.tag in tags}


def _read_environment(environment: Mapping[str, str], problems: list[UsageError]) -> Iterator[Given]:
    by_variable = {key.variable: key for key in schema().values()}
    if environment.get("DOCKER_IMAGE"):
        yield Given("container.image", environment["DOCKER_IMAGE"], "environment DOCKER_IMAGE")
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        key = by_variable.get(variable)
        if key is None:
            problems.append(UsageError(f"environment: unknown setting: {variable}", fix=did_you_mean(variable, by_variable)))
            continue
        try:
            yield Given(key.path, from_text(key, environment[variable]), f"environment {variable}")
        except SettingValueError as error:
            problems.append(UsageError(f"environment {variable}: {error.what}", fix=error.fix))


def from_text(key: Key, text: str) -> Any:
    """Convert the text of a variable or flag to the key's type; `resolve` reports a text that does not fit.

    Raises:
        SettingValueError: The text is neither true nor false, or not YAML.
    """
    if key.type == "bool":
        if text.lower() not in _BOOLEANS:
            raise SettingValueError(f"expected true or false, got {text!r}", fix="give true or false")
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
        fix = f"write {_TYPE_NAMES[key.type]}, for example " + ("[a, b]" if key.type == "list" else "{NAME: value}")
        raise SettingValueError(f"not valid YAML: {' '.join(str(error).split())}", fix=fix) from error


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False, "": False}


def _merge(key: Key, below: Setting, item: Given) -> Setting:
    value = validate(key, item.value)
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


def validate(key: Key, value: Any) -> Any:
    """Return the value in the key's type.

    Raises:
        SettingValueError: The value has another type or is not allowed.
    """
    if key.auto and value == "auto":
        return value
    if key.type in ("choice", "str", "path"):
        return _validate_text(key, value)
    types: dict[str, type[Any]] = {"int": int, "bool": bool, "list": list, "map": dict}
    if not isinstance(value, types[key.type]) or (key.type == "int" and isinstance(value, bool)):
        expected = _TYPE_NAMES[key.type] + (" or auto" if key.auto else "")
        raise SettingValueError(f"expected {expected}, got {value!r}", fix=f"give {expected}. {key.meaning}")
    if key.type == "int" and value < 0:
        raise SettingValueError(f"{value} is below 0", fix=f"give 0 or more. {key.meaning}")
    if key.type == "list":
        return [_validate_text(key, item) for item in value]
    if key.type == "map":
        _validate_map(value)
    return value


_TYPE_NAMES = {"int": "a number", "bool": "true or false", "list": "a list", "map": "a mapping"}


def _validate_text(key: Key, value: Any) -> str:
    if key.type == "choice":
        value = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) and "on" in key.choices else value
        if value not in key.choices:
            raise SettingValueError(f"unknown value {value!r}", fix=did_you_mean(str(value), key.choices))
    if not isinstance(value, str):
        raise SettingValueError(f"expected a text, got {value!r}", fix=f'write it in quotes: "{value}"')
    return value


def _validate_map(value: Mapping[Any, Any]) -> None:
    for name, entry in value.items():
        if not isinstance(name, str) or isinstance(entry, (dict, list)):
            raise SettingValueError(f"{name}: expected one value, got {entry!r}", fix="write NAME: value")


def _sections() -> set[str]:
    return {key.section for key in schema().values()}


def _names(section: str) -> list[str]:
    return [key.name for key in schema().values() if key.section == section]


def check_names(data: Mapping[str, Any]) -> None:
    """Check the sections and keys of plain data.

    Raises:
        UsageError: A section or key does not exist.
    """
    for section, keys in data.items():
        if section not in _sections():
            raise _unknown_section(section)
        if not isinstance(keys, dict):
            raise _not_a_section(section)
        for name in keys:
            if f"{section}.{name}" not in schema():
                raise _unknown_key(section, name)


def in_schema_order(settings: Settings) -> list[Setting]:
    """Return all settings in the order of data/settings.yml."""
    return [settings.items[path] for path in schema()]


def working_folder() -> Path:
    """Return the working folder.

    Raises:
        UsageError: It no longer exists.
    """
    try:
        return Path(os.getcwd())  # noqa: PTH109 - Path.cwd() is the same call; named here because it can fail
    except FileNotFoundError as error:
        raise UsageError("the working folder no longer exists", fix="change to an existing folder: cd ~") from error
