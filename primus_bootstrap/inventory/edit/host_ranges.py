"""Remove a host name from a host range (`gpu[001:064]`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RANGE = re.compile(r"\[([^\[\]:]+):([^\[\]:]+)(?::(\d+))?\]")


def without_name(pattern: str, name: str, expand: Callable[[str], list[str]]) -> tuple[str, ...]:
    """Return patterns for the hosts of `pattern` except `name`, in the same order.

    Args:
        pattern: A key under `hosts:`, with any number of ranges.
        name: The host to remove.
        expand: Expands a pattern to host names, as Ansible does.
    """
    names = expand(pattern)
    if name not in names:
        return (pattern,)
    found = _RANGE.search(pattern)
    if found is None:
        return ()
    head, tail = pattern[: found.start()], pattern[found.end() :]
    values = expand(found[0])
    # Each value of the first range has as many names as the remaining ranges have values.
    at = names.index(name) // (len(names) // len(values))
    before = _joined(head, values[:at], found[3], tail)
    after = _joined(head, values[at + 1 :], found[3], tail)
    return (*before, *without_name(f"{head}{values[at]}{tail}", name, expand), *after)


def _joined(head: str, values: list[str], step: str | None, tail: str) -> tuple[str, ...]:
    """Return one pattern for consecutive values of a range; a single value is not written as a range."""
    if not values:
        return ()
    if len(values) == 1:
        return (f"{head}{values[0]}{tail}",)
    by = f":{step}" if step else ""
    return (f"{head}[{values[0]}:{values[-1]}{by}]{tail}",)
