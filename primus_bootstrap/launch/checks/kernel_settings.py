"""A switch of the kernel against what it should be: what several checks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import judged

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

FIX = "apply the phase baseline"


def wanted(node: Node, name: str) -> tuple[object, str]:
    """Return what a switch should be, and who says so: the inventory, else this project's default."""
    value = node.expected.get(name)
    if value is not None:
        return value, node.expected.source(name)
    default = limit(name)
    return default.value, default.source


def compare(node: Node, name: str, found: str, *, reason: str) -> Verdict:
    """Judge a switch that is a word."""
    value, source = wanted(node, name)
    word = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return judged(good=found == word, reason=reason, fix=FIX, expected=word, found=found, source=source)
