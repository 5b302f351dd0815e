"""Check that a program can lock unlimited memory, as RDMA requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check
from primus_bootstrap.launch.detect import nics
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _check(node: Node) -> list[Verdict]:
    return [node_preflight.locked_memory(has_rdma=any(port.state == "ACTIVE" for port in nics.read_ports(node.host)))]


CHECK = Check("memlock", "On nodes with RDMA, the limit of locked memory is unlimited.", "getrlimit", _check)
