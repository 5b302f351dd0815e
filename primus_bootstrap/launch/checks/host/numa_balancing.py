"""Does the kernel move pages between NUMA nodes behind the programs' backs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.kernel_settings import compare
from primus_bootstrap.launch.checks.model import MACHINE, Check, number_of, skipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    path = node.host.path("proc", "sys", "kernel", "numa_balancing")
    if not path.exists():
        yield skipped("this kernel has no NUMA balancing")
        return
    found = "on" if number_of(path) else "off"
    yield compare(node, "numa_balancing", found, reason=f"NUMA balancing is {found}")


CHECK = Check("numa_balancing", "NUMA balancing is off, or as expected.", "/proc/sys/kernel/numa_balancing", _look, needs=(MACHINE,))
