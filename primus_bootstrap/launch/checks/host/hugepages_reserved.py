"""Check that little memory is reserved for huge pages."""

from __future__ import annotations

import re

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import Check, Node, UnavailableError, Verdicts, pass_or_fail, require_text


def _check(node: Node) -> Verdicts:
    text = require_text(node.host.path("proc", "meminfo"))
    sizes = {
        match[1]: int(match[2]) for match in re.finditer(r"^(MemTotal|Hugetlb|HugePages_Total|Hugepagesize):\s*(\d+)", text, re.MULTILINE)
    }
    if "MemTotal" not in sizes:
        raise UnavailableError("/proc/meminfo has no MemTotal")
    # Hugetlb counts all sizes (since Linux 4.16); older kernels report the default size only.
    reserved = sizes.get("Hugetlb", sizes.get("HugePages_Total", 0) * sizes.get("Hugepagesize", 0))
    percent, most = 100 * reserved / sizes["MemTotal"], limit("hugepages_percent")
    fields = {"expected": f"<= {most.value}", "found": f"{percent:.1f}", "unit": "percent of the memory", "source": most.source}
    fix = "lower vm.nr_hugepages (sysctl), or hugepages= on the kernel's command line"
    reason = f"{percent:.1f} % of the memory is reserved for huge pages"
    yield pass_or_fail(good=percent <= most.value, reason=reason, fix=fix, **fields)


CHECK = Check("hugepages", "Little memory is reserved for huge pages.", "/proc/meminfo", _check)
