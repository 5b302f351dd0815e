"""TorchTitan's own parser: the keys that it accepts, and its judgement of a configuration file. Needs no GPU and no process group."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str"}


def known_keys() -> dict[str, dict[str, Any]]:
    """Return every setting by its name, such as training.seq_len: kind, default and choices."""
    from torchtitan.config import JobConfig  # noqa: PLC0415 - only the interpreter of the backend has it

    return dict(sorted(_keys(JobConfig(), "").items()))


def _keys(section: Any, prefix: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    hints = typing.get_type_hints(type(section))
    for entry in dataclasses.fields(section):
        value, name = getattr(section, entry.name), f"{prefix}{entry.name}"
        if dataclasses.is_dataclass(value):
            found.update(_keys(value, f"{name}."))
        else:
            found[name] = _facts(hints[entry.name], value)
    return found


def _facts(hint: Any, default: Any) -> dict[str, Any]:
    alternatives = [item for item in _alternatives(hint) if item is not type(None)]
    facts: dict[str, Any] = {"kind": _kind(alternatives)}
    if default is not None:
        facts["default"] = default
    choices = [choice for item in alternatives if typing.get_origin(item) is typing.Literal for choice in typing.get_args(item)]
    if choices:
        facts["choices"] = choices
    return facts


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _kind(alternatives: list[Any]) -> str:
    kinds = {_kind_of(item) for item in alternatives}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds == {"int", "float"}:
        return "float"
    return "list" if kinds == {"list", "str"} else "any"


def _kind_of(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is list:
        return "list" if typing.get_args(hint) == (str,) else "any"
    return "str" if origin is typing.Literal else _PLAIN.get(hint, "any")
