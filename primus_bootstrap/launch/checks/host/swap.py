"""Check that swap is off."""

from __future__ import annotations

from primus_bootstrap.launch.checks.kernel_settings import FIX, expected_value
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, Verdicts, pass_or_fail, require_text


def _check(node: Node) -> Verdicts:
    areas = [line.split()[0] for line in require_text(node.host.path("proc", "swaps")).splitlines()[1:] if line.strip()]
    allowed, source = expected_value(node, "swap")
    found, expected = ", ".join(areas) or "off", "on or off" if allowed else "off"
    yield pass_or_fail(
        good=bool(allowed) or not areas, reason=f"swap is on: {', '.join(areas)}", fix=FIX, expected=expected, found=found, source=source
    )


CHECK = Check("swap", "Swap is off, or expected.", "/proc/swaps", _check, needs=(MACHINE,))
