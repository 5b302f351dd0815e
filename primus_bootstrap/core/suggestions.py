"""Suggest a known name for an unknown one, by difflib."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known name most similar to `word`, or an empty string if none is similar enough.

    Case and `-` for `_` do not count, nor does the order of the words that these signs join. `cutoff` is the lowest ratio of
    difflib's SequenceMatcher, from 0 (nothing in common) to 1 (the same).
    """
    wanted = _plain(word)
    by_plain = {_plain(name): name for name in sorted(known, reverse=True)}  # of two that are the same, the first in the alphabet
    words = sorted(wanted.split("_"))
    same_words = [plain for plain in by_plain if len(plain) == len(wanted) and sorted(plain.split("_")) == words]
    found = [wanted] if wanted in by_plain else same_words or difflib.get_close_matches(wanted, by_plain, n=1, cutoff=cutoff)
    return by_plain[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?`, or the choices if no name is similar. A name is never suggested for itself."""
    choices = sorted(set(known))
    found = nearest(word, [choice for choice in choices if choice != word])
    return f"did you mean {found}?" if found else f"choose from: {', '.join(choices)}"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
