"""Check that all NUMA nodes with processors have about the same memory. This detects a disabled DIMM without an expected size."""

from __future__ import annotations

import re

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import Check, Node, UnavailableError, Verdicts, list_names, pass_or_fail, require_text, skipped
from primus_bootstrap.launch.detect import sysfs

_KIB_IN_GIB = 1 << 20


def _check(node: Node) -> Verdicts:
    folder = node.host.path("sys", "devices", "system", "node")
    names = [name for name in list_names(folder) if re.fullmatch(r"node\d+", name) and sysfs.read_text(folder / name / "cpulist")]
    sizes: dict[str, float] = {}
    for name in names:
        match = re.search(r"MemTotal:\s*(\d+) kB", require_text(folder / name / "meminfo"))
        if match is None:
            raise UnavailableError(f"{folder / name}/meminfo has no MemTotal")
        sizes[name] = int(match[1]) / _KIB_IN_GIB
    if len(sizes) < 2:
        yield skipped("the host has one NUMA node with processors")
        return
    most, allowed = max(sizes.values()), limit("memory_between_nodes_percent")
    least = most * (1 - allowed.value / 100)
    for name, gib in sizes.items():
        reason = f"{most - gib:.0f} GiB less than the largest NUMA node"
        fix = "see `dmidecode -t memory` for an empty or disabled slot of this processor"
        fields = {"device": name, "expected": f">= {least:.1f}", "found": f"{gib:.1f}", "unit": "GiB", "source": allowed.source}
        yield pass_or_fail(good=gib >= least, reason=reason, fix=fix, **fields)


CHECK = Check("memory_nodes", "All NUMA nodes with processors have about the same memory.", "meminfo of the nodes in sysfs", _check)
