"""Does the firmware say beside which processor each GPU sits? Without it processes are bound to the wrong one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, judged, listed, skipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_FIX = "update the machine's firmware, or set NUMA per socket in it"


def _look(node: Node) -> Iterator[Verdict]:
    nodes = [name for name in listed(node.host.path("sys", "devices", "system", "node")) if re.fullmatch(r"node\d+", name)]
    if len(nodes) < 2:
        yield skipped("there is one NUMA node")
        return
    for gpu in node.gpu_findings.gpus:
        found = "none" if gpu.numa_node is None else f"node{gpu.numa_node}"
        fields = {"device": gpu.address, "expected": f"one of {len(nodes)} nodes", "found": found, "source": "numa_node in sysfs"}
        yield judged(good=found in nodes, reason="the firmware does not say beside which processor it sits", fix=_FIX, **fields)


CHECK = Check("gpu_numa", "The firmware says beside which processor every GPU sits.", "numa_node in sysfs", _look, needs=(GPU,))
