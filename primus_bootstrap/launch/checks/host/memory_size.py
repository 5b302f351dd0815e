"""Check that the kernel sees all of the installed memory."""

from __future__ import annotations

import re

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import Check, Node, UnavailableError, Verdicts, pass_or_fail, require_text, skipped

_KIB_IN_GIB = 1 << 20


def _check(node: Node) -> Verdicts:
    match = re.search(r"^MemTotal:\s*(\d+) kB", require_text(node.host.path("proc", "meminfo")), re.MULTILINE)
    if match is None:
        raise UnavailableError("/proc/meminfo has no MemTotal")
    gib, expected = int(match[1]) / _KIB_IN_GIB, node.expected.get("ram_gib")
    if expected is None:
        yield skipped("no memory size is expected (ram_gib)", found=f"{gib:.1f}", unit="GiB")
        return
    reserved = limit("memory_reserved_percent")
    least = expected * (1 - reserved.value / 100)
    source = f"{node.expected.source('ram_gib')}, less {reserved.value} % ({reserved.source})"
    reason = f"{expected - gib:.0f} GiB of {expected:g} GiB are missing"
    fix = "see `dmidecode -t memory` and the BMC's event log for a disabled DIMM; reseat or replace it"
    yield pass_or_fail(good=gib >= least, reason=reason, fix=fix, expected=f">= {least:.1f}", found=f"{gib:.1f}", unit="GiB", source=source)


CHECK = Check("memory_size", "The kernel sees the installed memory.", "MemTotal in /proc/meminfo", _check)
