"""Check the size of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _check(node: Node) -> list[Verdict]:
    return [node_preflight.shared_memory(node.host.root)]


CHECK = Check("shm", "Shared memory is large enough for data loaders and collectives.", "statvfs of /dev/shm", _check)
