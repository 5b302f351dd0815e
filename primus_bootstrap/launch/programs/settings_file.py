"""Read the settings of a training run from YAML and JSON files and from `key=value` arguments, each with its place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# The modules of an experiment of AMD Primus: https://github.com/AMD-AGI/Primus/tree/main/examples/megatron/configs
_TRAINERS = ("pre_trainer", "post_trainer", "sft_trainer")


@dataclass(frozen=True)
class Given:
    """A value from the user. `where` is `FILE:LINE` or the argument."""

    name: str
    value: Any
    where: str


def from_argument(word: str) -> Given:
    """Return the setting of `key=value`.

    Raises:
        UsageError: There is no `=`.
    """
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"{word}: neither an option nor key=value", fix="write key=value, for example train.steps=100")
    return Given(name, value, f"argument {word}")


def from_file(path: Path, shown: str) -> list[Given]:
    """Return the settings of a file; `shown` is its name in messages.

    Raises:
        UsageError: The file cannot be read, has another form, or is an experiment file of AMD Primus.
    """
    try:
        text = path.read_text("utf-8")
        return list(_from_json(json.loads(text), shown) if path.suffix == ".json" else _from_yaml(text, shown))
    except (OSError, ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise UsageError(f"{shown}: cannot be read as {kind}: {' '.join(str(error).split())}", fix="correct the file") from error


def from_yaml(text: str, shown: str) -> list[Given]:
    """Return the settings of a YAML text; `shown` is its name in messages."""
    return list(_from_yaml(text, shown))


def refuse_primus_experiment(data: object, shown: str) -> None:
    """Check that the content of a file is not an experiment of AMD Primus.

    Raises:
        UsageError: It is; the fix converts the file.
    """
    modules = data.get("modules") if isinstance(data, dict) else None
    if isinstance(modules, dict) and any(name in modules for name in _TRAINERS):
        raise UsageError(f"{shown}: this is an experiment file of AMD Primus", fix=f"primus-cli config convert {shown}")


def _from_json(tree: object, shown: str) -> Iterator[Given]:
    if not isinstance(tree, dict):
        raise UsageError(f"{shown}: not a mapping", fix='write {"section": {"name": value}}')
    refuse_primus_experiment(tree, shown)
    yield from _walk(tree, "", shown)


def _walk(tree: Mapping[str, Any], prefix: str, shown: str) -> Iterator[Given]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _walk(value, f"{prefix}{name}.", shown)
        else:
            yield Given(f"{prefix}{name}", value, shown)


def _from_yaml(text: str, shown: str) -> Iterator[Given]:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        refuse_primus_experiment(yaml.safe_load(text), shown)
        if node is not None:
            yield from _from_node(loader, node, "", shown)
    finally:
        loader.dispose()


def _from_node(loader: yaml.SafeLoader, node: yaml.Node, prefix: str, shown: str) -> Iterator[Given]:
    if not isinstance(node, yaml.MappingNode):
        what = f"{shown}:{node.start_mark.line + 1}: {prefix.rstrip('.') or 'the file'} is not a mapping"
        raise UsageError(what, fix="write `section:` and below it `name: value`")
    names: set[str] = set()
    for key, value in node.value:
        name, where = f"{prefix}{key.value}", f"{shown}:{key.start_mark.line + 1}"
        if name in names:
            raise UsageError(f"{where}: {name} is set twice", fix="remove one of the two lines")
        names.add(name)
        if isinstance(value, yaml.MappingNode):
            yield from _from_node(loader, value, f"{name}.", shown)
        else:
            yield Given(name, loader.construct_object(value, deep=True), where)
