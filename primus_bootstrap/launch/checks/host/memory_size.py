"""Does the kernel see all the memory that is fitted?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import CannotTellError, Check, judged, skipped, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_KIB_IN_GIB = 1 << 20


def _look(node: Node) -> Iterator[Verdict]:
    match = re.search(r"^MemTotal:\s*(\d+) kB", text_of(node.host.path("proc", "meminfo")), re.MULTILINE)
    if match is None:
        raise CannotTellError("/proc/meminfo has no MemTotal")
    gib, wanted = int(match[1]) / _KIB_IN_GIB, node.expected.get("ram_gib")
    if wanted is None:
        yield skipped("nobody said how much is fitted (ram_gib)", found=f"{gib:.1f}", unit="GiB")
        return
    reserved = limit("memory_reserved_percent")
    least = wanted * (1 - reserved.value / 100)
    source = f"{node.expected.source('ram_gib')}, less {reserved.value} % ({reserved.source})"
    reason = f"{wanted - gib:.0f} GiB of {wanted:g} are missing"
    fix = "see `dmidecode -t memory` and the BMC's event log for a DIMM that was switched off; reseat or replace it"
    yield judged(good=gib >= least, reason=reason, fix=fix, expected=f">= {least:.1f}", found=f"{gib:.1f}", unit="GiB", source=source)


CHECK = Check("memory_size", "The kernel sees the memory that is fitted.", "MemTotal in /proc/meminfo", _look)
