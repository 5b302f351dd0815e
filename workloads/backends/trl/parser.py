"""The own parsers of TRL and PEFT: the settings that they accept, and their judgement of values. Needs no GPU and no process group."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str"}
_JSON = (bool, int, float, str, list, type(None))


def classes() -> dict[str, Any]:
    """Return the classes of settings by the section of their names."""
    from peft import LoraConfig  # noqa: PLC0415 - only the interpreter of the backend has it
    from trl import GRPOConfig, SFTConfig  # noqa: PLC0415 - the same

    return {"sft": SFTConfig, "grpo": GRPOConfig, "lora": LoraConfig}


def known_keys() -> dict[str, dict[str, Any]]:
    """Return every setting by its name, such as sft.learning_rate: kind, default and choices."""
    found: dict[str, dict[str, Any]] = {}
    for section, kind in classes().items():
        hints = typing.get_type_hints(kind)
        for entry in dataclasses.fields(kind):
            if entry.init:
                found[f"{section}.{entry.name}"] = _facts(hints[entry.name], _default(entry))
    return dict(sorted(found.items()))


def _default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return None if entry.default is dataclasses.MISSING else entry.default


def _facts(hint: Any, default: Any) -> dict[str, Any]:
    alternatives = [item for item in _alternatives(hint) if item is not type(None)]
    facts: dict[str, Any] = {"kind": _kind(alternatives)}
    if default is not None and type(default) in _JSON:
        facts["default"] = default
    choices = _choices(alternatives)
    if choices:
        facts["kind"], facts["choices"] = "str", choices
        if isinstance(default, enum.Enum):
            facts["default"] = default.value
    return facts


def _choices(alternatives: list[Any]) -> list[Any]:
    """Return the only values: of a Literal, or of an enumeration, which may also be given as a text."""
    others = [item for item in alternatives if item is not str]
    if len(others) != 1:
        return []
    if isinstance(others[0], type) and issubclass(others[0], enum.Enum):
        return [item.value for item in others[0]]
    return list(typing.get_args(others[0])) if typing.get_origin(others[0]) is typing.Literal and len(alternatives) == 1 else []


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _kind(alternatives: list[Any]) -> str:
    kinds = {_kind_of(item) for item in alternatives}
    if len(kinds) == 1:
        return kinds.pop()
    return "float" if kinds == {"int", "float"} else "any"


def _kind_of(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is list:
        return "list" if typing.get_args(hint) == (str,) else "any"
    return "str" if origin is typing.Literal else _PLAIN.get(hint, "any")


def trainer_settings(method: str, values: dict[str, Any]) -> Any:
    """Return the settings of the trainer, as its own class has checked them.

    Raises:
        TypeError: A name is unknown.
        ValueError: A value is refused.
    """
    return classes()["grpo" if method == "grpo" else "sft"](**values)


def lora_settings(values: dict[str, Any]) -> Any:
    """Return the settings of LoRA, as PEFT's own class has checked them; errors as those of `trainer_settings`."""
    return classes()["lora"](**values)
