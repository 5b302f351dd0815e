"""Check the number of GPUs on the PCI bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check, unknown
from primus_bootstrap.launch.runtimes import node_preflight

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _check(node: Node) -> list[Verdict]:
    if node.expected.problem and node.expected.get("gpus") is None:
        return [unknown(f"the expected number is not known: {node.expected.problem}", fix="apply the phase gpu, which writes the file")]
    return [node_preflight.gpu_count(node.host.root, node.expected.get("gpus"), node.expected.source("gpus"))]


CHECK = Check("gpus", "The expected number of GPUs is on the PCI bus, all of one known model.", "PCI ids in sysfs", _check)
