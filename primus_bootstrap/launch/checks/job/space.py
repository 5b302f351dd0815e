"""Check the free space in the run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _check(node: Node) -> list[Verdict]:
    return [node_preflight.free_space(node.run_dir, node.min_free_gib)]


CHECK = Check("space", "The run folder has enough free space.", "statvfs of the run folder", _check)
