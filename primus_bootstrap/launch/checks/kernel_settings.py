"""Compare a kernel setting with its expected value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import pass_or_fail

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

FIX = "apply the phase baseline"


def expected_value(node: Node, name: str) -> tuple[object, str]:
    """Return the expected value of a setting and its source: the inventory, else limits.yml."""
    value = node.expected.get(name)
    if value is not None:
        return value, node.expected.source(name)
    default = limit(name)
    return default.value, default.source


def compare_setting(node: Node, name: str, found: str, *, reason: str) -> Verdict:
    """Compare a setting, given as a word, with its expected value."""
    value, source = expected_value(node, name)
    word = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return pass_or_fail(good=found == word, reason=reason, fix=FIX, expected=word, found=found, source=source)
