"""Megatron-LM's own parser: the keys that it accepts, and its judgement of a command line. Needs no GPU and no process group."""

from __future__ import annotations

import argparse
from typing import Any

_KINDS: dict[Any, str] = {int: "int", float: "float", str: "str", None: "str", bool: "bool"}


def known_keys() -> dict[str, dict[str, Any]]:
    """Return every setting by its name in the program: kind, default, choices and the options that set it."""
    from megatron.training.arguments import add_megatron_arguments  # noqa: PLC0415 - only the interpreter of the backend has it

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    found: dict[str, dict[str, Any]] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list
        if action.dest != "help" and action.option_strings:
            _merge(found.setdefault(action.dest, {}), action)
    return dict(sorted(found.items()))


def _merge(key: dict[str, Any], action: argparse.Action) -> None:
    """Add an option to its setting; some settings have one option to switch it on and another one to switch it off."""
    if not key:
        key.update(_facts(action))
    if isinstance(action, argparse.BooleanOptionalAction):
        names = action.option_strings
        key["option"] = next(name for name in names if not name.startswith("--no-"))
        key["off"] = next(name for name in names if name.startswith("--no-"))
    elif isinstance(action, argparse._StoreConstAction):  # noqa: SLF001 - the class of store_true, store_false and store_const
        key["off" if action.const is False else "option"] = _long(action)
    else:
        key["option"] = _long(action)


def _long(action: argparse.Action) -> str:
    return max(action.option_strings, key=len)


def _facts(action: argparse.Action) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": _kind(action)}
    if action.default is not None and action.default is not argparse.SUPPRESS:
        facts["default"] = _plain(action.default)
    if action.choices:
        facts["choices"] = [_plain(value) for value in action.choices]
    return facts


def _kind(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction) or (action.nargs == 0 and isinstance(action.const, bool)):
        return "bool"
    if action.nargs == 0:
        return "flag"
    if action.nargs not in (None, "?"):
        return "list"
    return _KINDS.get(action.type, "any")


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; others, such as members of an enum, as the text that the option takes."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(getattr(value, "name", value))
