"""How often has the link of each network port been lost since boot?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, Check, judged, listed, skipped
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    folder, most = node.host.path("sys", "class", "net"), limit("link_downs")
    counts = {name: sysfs.read_int(folder / name / "carrier_down_count") for name in listed(folder) if (folder / name / "device").exists()}
    known = {name: count for name, count in counts.items() if count is not None}
    if not known:
        yield skipped("no network card counts how often it lost its link")
    for name, count in known.items():
        fields = {"device": name, "expected": f"<= {most.value}", "found": str(count), "unit": "losses since boot", "source": most.source}
        yield judged(
            good=count <= most.value, reason=f"it lost its link {count} times", fix="look at cable, transceiver and switch port", **fields
        )


CHECK = Check("link_flaps", "No network port has lost its link again and again.", "carrier_down_count in sysfs", _look, needs=(MACHINE,))
