"""Suggests a known name for an unknown one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known name most similar to `word`, or an empty string if none is similar enough.

    Case, leading `-`, `-` instead of `_`, and the order of the words that these characters join are ignored. `cutoff` is the lowest
    ratio of difflib's SequenceMatcher, from 0 (nothing in common) to 1 (equal).
    """
    unknown = _plain(word)
    by_plain = {_plain(name): name for name in sorted(known, reverse=True)}  # of equal names, the alphabetically first
    words = sorted(unknown.split("_"))
    same_words = [plain for plain in by_plain if len(plain) == len(unknown) and sorted(plain.split("_")) == words]
    matches = [unknown] if unknown in by_plain else same_words or difflib.get_close_matches(unknown, by_plain, n=1, cutoff=cutoff)
    return by_plain[matches[0]] if matches else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?`, or the choices if no name is similar. The word itself is not suggested."""
    choices = sorted(set(known))
    match = nearest(word, [choice for choice in choices if choice != word])
    return f"did you mean {match}?" if match else f"choose from: {', '.join(choices)}"


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_")
