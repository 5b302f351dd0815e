"""Has the run folder room?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch import node_preflight
from primus_bootstrap.launch.checks.model import Check

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.records import Record


def _look(node: Node) -> list[Record]:
    return [node_preflight.free_space(node.run_dir, node.min_free_gib)]


CHECK = Check("space", "The run folder has room.", "statvfs of the run folder", _look)
