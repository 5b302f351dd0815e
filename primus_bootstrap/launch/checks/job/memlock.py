"""May a program lock memory without limit, as RDMA needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch import nics, node_preflight
from primus_bootstrap.launch.checks.model import Check

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.records import Record


def _look(node: Node) -> list[Record]:
    return [node_preflight.locked_memory(has_rdma=any(port.state == "ACTIVE" for port in nics.read_ports(node.host)))]


CHECK = Check("memlock", "Memory can be locked without limit, where there is RDMA.", "getrlimit", _look)
