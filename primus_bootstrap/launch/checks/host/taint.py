"""Check the kernel's taint flags that report damage."""

from __future__ import annotations

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, require_number

_SOURCE = "https://docs.kernel.org/admin-guide/tainted-kernels.html"
# Only the flags for damage: proprietary, unsigned and out-of-tree drivers also taint the kernel, and most GPU hosts use them.
_DAMAGE = {4: "machine check (M)", 5: "bad page (B)", 7: "oops (D)", 14: "soft lockup (L)"}


def _check(node: Node) -> Verdicts:
    tainted = require_number(node.host.path("proc", "sys", "kernel", "tainted"))
    bad = [meaning for bit, meaning in _DAMAGE.items() if tainted >> bit & 1]
    fields = {"expected": "no damage", "found": f"{tainted} ({', '.join(bad) or 'no damage'})", "source": _SOURCE}
    fix = "see `journalctl -k` for the event, and reboot"
    yield pass_or_fail(good=not bad, reason=f"the kernel's taint flags report {', '.join(bad)}", fix=fix, **fields)


CHECK = Check("kernel_taint", "The kernel's taint flags report no damage.", "/proc/sys/kernel/tainted", _check)
