"""Check the setting of automatic NUMA balancing, with which the kernel moves pages between NUMA nodes."""

from __future__ import annotations

from primus_bootstrap.launch.checks.kernel_settings import compare_setting
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, Verdicts, require_number, skipped


def _check(node: Node) -> Verdicts:
    path = node.host.path("proc", "sys", "kernel", "numa_balancing")
    if not path.exists():
        yield skipped("this kernel has no NUMA balancing")
        return
    found = "on" if require_number(path) else "off"
    yield compare_setting(node, "numa_balancing", found, reason=f"NUMA balancing is {found}")


CHECK = Check(
    "numa_balancing", "NUMA balancing is off, or has the expected setting.", "/proc/sys/kernel/numa_balancing", _check, needs=(MACHINE,)
)
