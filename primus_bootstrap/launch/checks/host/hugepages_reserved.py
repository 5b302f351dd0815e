"""Is memory lost to huge pages that somebody reserved?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import CannotTellError, Check, judged, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    text = text_of(node.host.path("proc", "meminfo"))
    sizes = {
        match[1]: int(match[2]) for match in re.finditer(r"^(MemTotal|Hugetlb|HugePages_Total|Hugepagesize):\s*(\d+)", text, re.MULTILINE)
    }
    if "MemTotal" not in sizes:
        raise CannotTellError("/proc/meminfo has no MemTotal")
    # Hugetlb counts all sizes (since Linux 4.16); before, only the default size was told.
    reserved = sizes.get("Hugetlb", sizes.get("HugePages_Total", 0) * sizes.get("Hugepagesize", 0))
    percent, most = 100 * reserved / sizes["MemTotal"], limit("hugepages_percent")
    fields = {"expected": f"<= {most.value}", "found": f"{percent:.1f}", "unit": "percent of the memory", "source": most.source}
    fix = "see /proc/sys/vm/nr_hugepages and hugepages= on the kernel's command line"
    yield judged(good=percent <= most.value, reason="memory is reserved for huge pages", fix=fix, **fields)


CHECK = Check("hugepages", "Little memory is reserved for huge pages.", "/proc/meminfo", _look)
