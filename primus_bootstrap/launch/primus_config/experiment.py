"""Read an experiment file of AMD Primus: its trainer, framework, presets and overrides, with `extends:` and `${VARIABLE:default}`.

The presets (`config:` and `model:`) are read if the file is in a checkout of AMD Primus, which has them below primus/configs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")  # YAML reads 1e-5 as a text
_TASKS = {"pre_trainer": "train pretrain", "post_trainer": "train posttrain", "sft_trainer": "train posttrain"}


@dataclass(frozen=True)
class Layer:
    """Settings by dotted name, and the file they are from."""

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """An experiment file."""

    task: str  # train pretrain or train posttrain
    framework: str
    model: str  # the name of the model preset, without .yaml
    overrides: Layer
    presets: tuple[Layer, ...] = ()  # weakest first
    missing_presets: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # the values that replaced ${…}, by variable
    environment: Mapping[str, Any] = field(default_factory=dict)  # the block env:
    other: tuple[str, ...] = ()  # further modules


def read_experiment(path: Path, environment: Mapping[str, str]) -> Experiment:
    """Read an experiment file.

    Raises:
        UsageError: It cannot be read, is no experiment of AMD Primus, or needs a variable that is not set.
    """
    used: dict[str, str] = {}
    data = _load(path, environment, used, ())
    modules = data["modules"] if isinstance(data.get("modules"), dict) else {}
    trainer = next((name for name in _TASKS if name in modules), "")
    if not trainer:
        fix = "give a file with modules: and pre_trainer: or post_trainer:"
        raise UsageError(f"{path}: not an experiment file of AMD Primus", fix=fix)
    body = modules[trainer]
    if not isinstance(body, dict) or not isinstance(body.get("framework"), str):
        raise UsageError(f"{path}: modules.{trainer} has no framework", fix="add framework: megatron, torchtitan or maxtext")
    framework, model = body["framework"], str(body.get("model") or "")
    presets: list[Layer] = []
    missing: list[str] = []
    for kind, name in (("models", model), ("modules", str(body.get("config") or ""))):
        found = _preset(path, f"primus/configs/{kind}/{framework}/{name}") if name else None
        if found:
            presets.append(Layer(name, dict(_flat(_load(found, environment, used, ())))))
        elif name:
            missing.append(name)
    return Experiment(
        task=_TASKS[trainer],
        framework=framework,
        model=re.sub(r"\.ya?ml$", "", model),
        overrides=Layer("overrides", dict(_flat(body.get("overrides") or {}))),
        presets=tuple(presets),
        missing_presets=tuple(missing),
        variables=used,
        environment=data["env"] if isinstance(data.get("env"), dict) else {},
        other=tuple(name for name in modules if name != trainer),
    )


def _preset(path: Path, name: str) -> Path | None:
    return next((parent / name for parent in path.absolute().parents if (parent / name).is_file()), None)


def _load(path: Path, environment: Mapping[str, str], used: dict[str, str], chain: tuple[Path, ...]) -> dict[str, Any]:
    """Return the content of a file over that of the files that it extends."""
    if path.resolve() in chain:
        raise UsageError(f"{path}: extends itself, through {', '.join(map(str, chain))}", fix="remove one of the lines extends:")
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}", fix="give a readable YAML file") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: not a mapping", fix="give an experiment file of AMD Primus")
    data = _substituted(data, environment, used, path)
    below = data.pop("extends", None) or []
    merged: dict[str, Any] = {}
    for name in [below] if isinstance(below, str) else below:
        merged = _merged(merged, _load(path.parent / name, environment, used, (*chain, path.resolve())))
    return _merged(merged, data)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for name, value in above.items():
        old = result.get(name)
        result[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _substituted(value: Any, environment: Mapping[str, str], used: dict[str, str], path: Path) -> Any:
    if isinstance(value, dict):
        return {name: _substituted(item, environment, used, path) for name, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, environment, used, path) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name not in environment and default is None:
            raise UsageError(f"{path}: ${{{name}}} is not set and has no default", fix=f"export {name}=…, and convert the file again")
        used[name] = environment.get(name, default or "")
        return used[name]

    text = _VARIABLE.sub(replace, value)
    return _plain(text) if text != value or _NUMBER.fullmatch(text) else value


def _plain(text: str) -> Any:
    """Return the number, boolean or null that a text stands for."""
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return text if isinstance(found, (dict, list)) else found


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
