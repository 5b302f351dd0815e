"""Check that the name of node 0 can be resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _check(node: Node) -> list[Verdict]:
    return [node_preflight.way_to_node_0(node.environment)]


CHECK = Check("node_0", "The name of node 0 can be resolved.", "MASTER_ADDR and the name service", _check)
