"""Check that torch is installed in this Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _check(_node: Node) -> list[Verdict]:
    return [node_preflight.torch_version()]


CHECK = Check("torch", "torch is installed in the run's Python.", "the packages of this Python", _check)
