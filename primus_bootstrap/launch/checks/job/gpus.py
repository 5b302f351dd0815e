"""How many GPUs are on the PCI bus?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check, unknown
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> list[Verdict]:
    if node.expected.problem and node.expected.get("gpus") is None:
        return [unknown(f"how many there should be: {node.expected.problem}", fix="apply the phase gpu again, which writes the file")]
    return [node_preflight.gpu_count(node.host.root, node.expected.get("gpus"), node.expected.source("gpus"))]


CHECK = Check("gpus", "As many GPUs are on the PCI bus as expected, all of one known model.", "PCI ids in sysfs", _look)
