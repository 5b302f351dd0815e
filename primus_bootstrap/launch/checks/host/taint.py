"""Has the kernel marked itself as damaged since boot?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check, judged, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_SOURCE = "https://docs.kernel.org/admin-guide/tainted-kernels.html"
# Only what is damage: a proprietary, unsigned or out-of-tree driver taints as well, and is what most GPU hosts have.
_DAMAGE = {4: "machine check (M)", 5: "bad page (B)", 7: "oops (D)", 14: "soft lockup (L)"}


def _look(node: Node) -> Iterator[Verdict]:
    tainted = number_of(node.host.path("proc", "sys", "kernel", "tainted"))
    bad = [meaning for bit, meaning in _DAMAGE.items() if tainted >> bit & 1]
    fields = {"expected": "no damage", "found": f"{tainted} ({', '.join(bad) or 'no damage'})", "source": _SOURCE}
    fix = "see `journalctl -k` for what happened, and reboot"
    yield judged(good=not bad, reason=f"the kernel is damaged: {', '.join(bad)}", fix=fix, **fields)


CHECK = Check("kernel_taint", "The kernel has not marked itself as damaged.", "/proc/sys/kernel/tainted", _look)
