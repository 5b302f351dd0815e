"""How the ranks of a run share its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of ranks that share work; the other ranks have other sequences.

    pipeline: ranks with different blocks; context: parts of each sequence; tensor: parts of each matrix; expert: parts of the experts,
    among the ranks with different tokens.
    """

    pipeline: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
