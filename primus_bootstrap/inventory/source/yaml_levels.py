"""Finds the line with the wrong indentation in a YAML file; libyaml names only the first line after it that does not fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SECTIONS = ("hosts", "vars", "children")
_KEY = re.compile(r"( *)([^\s#:'\"{\[-][^:]*):(?:\s|$)")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with a key."""

    number: int
    indent: int
    key: str

    @property
    def is_section(self) -> bool:
        return self.key in SECTIONS


def level_fault(lines: Sequence[str], number: int) -> tuple[int, str, str] | None:
    """Return line, message and fix for a line that fits no level, or None if the reason is another one.

    Args:
        lines: The lines of the file.
        number: The line, counted from 1, that libyaml reports.
    """
    keys = [_Line(at, len(match[1]), match[2].strip()) for at, line in enumerate(lines[:number], 1) if (match := _KEY.match(line))]
    if not keys or keys[-1].number != number:
        return None
    *before, wrong = keys
    outer = next((line for line in reversed(before) if line.indent < wrong.indent), None)
    inner = next((line for line in before if outer and line.number > outer.number), None)
    if outer is None or inner is None or inner.indent <= wrong.indent:
        return None
    if beside := _level_that_ended(before, outer, wrong.indent):
        what = (
            f"`{outer.key}` is indented by {_spaces(outer.indent)}, but line {wrong.number} (`{wrong.key}`) continues with {wrong.indent}"
        )
        return outer.number, what, f"indent this line by {_spaces(wrong.indent)}, like `{beside.key}` on line {beside.number}"
    levels = " nor of ".join(f"line {line.number} (`{line.key}`: {line.indent})" for line in (outer, inner))
    what = f"`{wrong.key}` is indented by {_spaces(wrong.indent)}, which is the level neither of {levels}"
    return wrong.number, what, f"indent it with all lines in it by {', or by '.join(_places(wrong, outer, inner))}"


def _places(wrong: _Line, outer: _Line, inner: _Line) -> Iterator[str]:
    if not (outer.is_section and wrong.is_section):
        yield f"{_spaces(inner.indent - wrong.indent)} more, under `{outer.key}`"
    if outer.is_section == wrong.is_section:
        yield f"{_spaces(wrong.indent - outer.indent)} less, beside `{outer.key}`"


def _spaces(number: int) -> str:
    return f"{number} space{'' if number == 1 else 's'}"


def _level_that_ended(before: Iterable[_Line], outer: _Line, indent: int) -> _Line | None:
    """Return the line that `outer` should stand beside: it has the indentation of the later lines, and is of the same kind.

    The levels of an inventory take turns: under a section are names, and under a name are sections.
    """
    above = [line for line in before if line.number < outer.number]
    beside = next((line for line in reversed(above) if line.indent <= indent), None)
    level = next((line for line in reversed(above) if line.indent <= outer.indent), None)
    if beside is None or level is None or beside.indent != indent or level.indent != outer.indent:
        return None
    return beside if level.is_section != outer.is_section and beside.is_section == outer.is_section else None
