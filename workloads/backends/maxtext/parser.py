"""MaxText's own parser: the keys that it accepts, and its judgement of a command line. Needs no GPU."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str"}


def known_keys() -> dict[str, dict[str, Any]]:
    """Return every setting by its name: kind, default and choices. Values that MaxText computes from others are left out."""
    os.environ["DECOUPLE_GCLOUD"] = "TRUE"  # otherwise it imports the libraries of Google Cloud
    with contextlib.redirect_stdout(sys.stderr):  # it prints remarks
        from maxtext.configs.types import DerivedValues, MaxTextConfig  # noqa: PLC0415 - only the interpreter of the backend has it

    fields = MaxTextConfig.model_fields
    found = {name: _facts(entry) for name, entry in sorted(fields.items()) if name not in DerivedValues.model_fields}
    found["remat_policy"]["choices"] = _remat_policies()
    return found


def _remat_policies() -> list[str]:
    """Return the values of remat_policy that MaxText's layers know. Its parser takes any text, and the run fails after minutes."""
    import maxtext  # noqa: PLC0415 - only the interpreter of the backend has it

    text = Path(maxtext.__path__[0], "layers", "nnx_decoders.py").read_text("utf-8")
    body = text[text.index("def get_remat_policy(") :]
    compared = re.findall(r"\bremat_policy (?:==|!=|in) (.*)", body[: body.index("\n  def ")])
    return sorted({name for words in compared for name in re.findall(r'"([a-z_]+)"', words.partition(",  ")[0])} - {"", "list"})


def _facts(entry: Any) -> dict[str, Any]:
    alternatives = [item for item in _alternatives(entry.annotation) if item is not type(None)]
    facts: dict[str, Any] = {"kind": _kind(alternatives)}
    default = entry.default.value if isinstance(entry.default, enum.Enum) else entry.default
    if isinstance(default, (bool, int, float, str, list)):
        facts["default"] = default
    choices = [choice for item in alternatives for choice in _choices(item)]
    if choices and all(_choices(item) for item in alternatives):
        facts["choices"] = choices
    return facts


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is typing.Annotated:
        return _alternatives(typing.get_args(hint)[0])
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _choices(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [item.value for item in hint] if isinstance(hint, type) and issubclass(hint, enum.Enum) else []


def _kind(alternatives: list[Any]) -> str:
    kinds = {_kind_of(item) for item in alternatives}
    if len(kinds) == 1:
        return kinds.pop()
    return "float" if kinds == {"int", "float"} else "any"


def _kind_of(hint: Any) -> str:
    if typing.get_origin(hint) is list:
        return "list" if typing.get_args(hint) == (str,) else "any"
    choices = _choices(hint)
    if choices:
        return _PLAIN.get(type(choices[0]), "any")
    return _PLAIN.get(hint, "any")
