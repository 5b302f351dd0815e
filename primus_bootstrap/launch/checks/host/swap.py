"""Is swap off?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.kernel_settings import FIX, wanted
from primus_bootstrap.launch.checks.model import MACHINE, Check, judged, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    areas = [line.split()[0] for line in text_of(node.host.path("proc", "swaps")).splitlines()[1:] if line.strip()]
    allowed, source = wanted(node, "swap")
    found, expected = ", ".join(areas) or "off", "on or off" if allowed else "off"
    yield judged(good=bool(allowed) or not areas, reason="swap is on", fix=FIX, expected=expected, found=found, source=source)


CHECK = Check("swap", "Swap is off, or as expected.", "/proc/swaps", _look, needs=(MACHINE,))
