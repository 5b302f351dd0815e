"""Write lists of names in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def first_names(names: Iterable[str], limit: int = 8) -> str:
    """Return the first names, each once, and the number of the others: "a, b and 3 more"."""
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:limit]) + (f" and {len(unique) - limit} more" if len(unique) > limit else "")
