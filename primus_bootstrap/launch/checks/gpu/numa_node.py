"""Check that the firmware reports the NUMA node of each GPU. Without it, processes cannot be bound to the nearest CPUs."""

from __future__ import annotations

import re

from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, list_names, pass_or_fail, skipped

_FIX = "update the host's firmware, or enable NUMA per socket in its settings"


def _check(node: Node) -> Verdicts:
    nodes = [name for name in list_names(node.host.path("sys", "devices", "system", "node")) if re.fullmatch(r"node\d+", name)]
    if len(nodes) < 2:
        yield skipped("the host has one NUMA node")
        return
    for gpu in node.gpu_findings.gpus:
        found = "none" if gpu.numa_node is None else f"node{gpu.numa_node}"
        fields = {"device": gpu.address, "expected": f"one of {len(nodes)} nodes", "found": found, "source": "numa_node in sysfs"}
        yield pass_or_fail(good=found in nodes, reason="the firmware does not report its NUMA node", fix=_FIX, **fields)


CHECK = Check("gpu_numa", "The firmware reports the NUMA node of every GPU.", "numa_node in sysfs", _check, needs=(GPU,))
