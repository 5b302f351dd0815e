"""Is shared memory large enough?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch import node_preflight
from primus_bootstrap.launch.checks.model import Check

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.records import Record


def _look(node: Node) -> list[Record]:
    return [node_preflight.shared_memory(node.host.root)]


CHECK = Check("shm", "Shared memory is large enough for data loaders and collectives.", "statvfs of /dev/shm", _look)
