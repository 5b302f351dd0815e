"""Host ranges (`gpu[001:064]`) as text: what is left of one when a name is taken out of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RANGE = re.compile(r"\[([^\[\]:]+):([^\[\]:]+)(?::(\d+))?\]")


def without_name(pattern: str, name: str, expand: Callable[[str], list[str]]) -> tuple[str, ...]:
    """Return the patterns that mean what `pattern` means without `name`, in the same order; itself where it does not mean it.

    Args:
        pattern: a key under `hosts:`, with any number of ranges.
        name: the host to take out.
        expand: turns one pattern into its names, by Ansible's own rules.
    """
    names = expand(pattern)
    if name not in names:
        return (pattern,)
    found = _RANGE.search(pattern)
    if found is None:
        return ()
    head, tail = pattern[: found.start()], pattern[found.end() :]
    values = expand(found[0])
    # Each value of the first range stands for as many names as the ranges behind it mean.
    at = names.index(name) // (len(names) // len(values))
    before = _joined(head, values[:at], found[3], tail)
    after = _joined(head, values[at + 1 :], found[3], tail)
    return (*before, *without_name(f"{head}{values[at]}{tail}", name, expand), *after)


def _joined(head: str, values: list[str], step: str | None, tail: str) -> tuple[str, ...]:
    """Return one pattern for neighbouring values of a range; a single value is written out."""
    if not values:
        return ()
    if len(values) == 1:
        return (f"{head}{values[0]}{tail}",)
    by = f":{step}" if step else ""
    return (f"{head}[{values[0]}:{values[-1]}{by}]{tail}",)
