"""Make text and JSON written by users safe to print and to parse: no terminal control characters, limited nesting."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 50
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,32}m)")


def printable(text: str) -> str:
    """Return the text as one line; control characters and line breaks become U+FFFD, because a terminal would execute them."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def printable_log(text: str) -> str:
    """Return the text of a log; control characters except line breaks, tabs and colours become U+FFFD."""
    parts = _COLOUR.split(text)
    return "".join(part if number % 2 else _lines(part) for number, part in enumerate(parts))


def _lines(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def printable_data(value: Any) -> Any:
    """Return plain data with `printable` applied to every string."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_data(key): printable_data(item) for key, item in value.items()}
    return [printable_data(item) for item in value] if isinstance(value, list) else value


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: It is not JSON, or is nested deeper than `MAX_DEPTH`, which recursive code cannot process.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    _check_depth(value, MAX_DEPTH)
    return value


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, (dict, list)):
        if left == 0:
            raise ValueError("nested too deeply")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, left - 1)
