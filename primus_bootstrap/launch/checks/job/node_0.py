"""Can the name of node 0 be resolved?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch import node_preflight
from primus_bootstrap.launch.checks.model import Check

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.records import Record


def _look(node: Node) -> list[Record]:
    return [node_preflight.way_to_node_0(node.environment)]


CHECK = Check("node_0", "The name of node 0 can be resolved.", "MASTER_ADDR and the name service", _look)
