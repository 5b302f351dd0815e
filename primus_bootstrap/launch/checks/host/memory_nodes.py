"""Has every NUMA node with processors about the same memory? A DIMM that was switched off shows here without an expectation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import CannotTellError, Check, judged, listed, skipped, text_of
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_KIB_IN_GIB = 1 << 20


def _look(node: Node) -> Iterator[Verdict]:
    folder = node.host.path("sys", "devices", "system", "node")
    names = [name for name in listed(folder) if re.fullmatch(r"node\d+", name) and sysfs.read_text(folder / name / "cpulist")]
    sizes: dict[str, float] = {}
    for name in names:
        match = re.search(r"MemTotal:\s*(\d+) kB", text_of(folder / name / "meminfo"))
        if match is None:
            raise CannotTellError(f"{folder / name}/meminfo has no MemTotal")
        sizes[name] = int(match[1]) / _KIB_IN_GIB
    if len(sizes) < 2:
        yield skipped("there is one NUMA node with processors")
        return
    most, allowed = max(sizes.values()), limit("memory_between_nodes_percent")
    least = most * (1 - allowed.value / 100)
    for name, gib in sizes.items():
        reason = f"{most - gib:.0f} GiB less than the largest node"
        fix = "see `dmidecode -t memory` for an empty or switched-off slot of this processor"
        fields = {"device": name, "expected": f">= {least:.1f}", "found": f"{gib:.1f}", "unit": "GiB", "source": allowed.source}
        yield judged(good=gib >= least, reason=reason, fix=fix, **fields)


CHECK = Check("memory_nodes", "Every NUMA node with processors has about the same memory.", "meminfo of the nodes in sysfs", _look)
