"""Suggest a known name for an unknown one, by difflib."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known name most similar to `word`, or an empty string if none is similar enough.

    Case, `-` for `_` and the order of words joined by them do not count. `cutoff` is the lowest ratio of difflib's
    SequenceMatcher, from 0 (nothing in common) to 1 (the same).
    """
    by_key = {_key(name): name for name in sorted(known, reverse=True)}  # of two with the same key the first in the alphabet
    found = difflib.get_close_matches(_key(word), by_key, n=1, cutoff=cutoff)
    return by_key[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?`, or the choices if no name is similar. A name is never suggested for itself."""
    choices = sorted(set(known))
    found = nearest(word, [choice for choice in choices if choice != word])
    return f"did you mean {found}?" if found else f"choose from: {', '.join(choices)}"


def _key(name: str) -> str:
    return "_".join(sorted(name.lower().replace("-", "_").split("_")))
