"""Has every RDMA device all lanes of its PCI Express link, and its speed? A network card lowers neither when idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import pcie
from primus_bootstrap.launch.checks.model import RDMA, CannotTellError, Check, judged, listed, skipped, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    folder = node.host.path("sys", "class", "infiniband")
    for name in listed(folder):
        device = folder / name / "device"
        if not device.exists() or sysfs.link_name(device / "physfn"):
            yield skipped("it has no link of its own", device=name)
            continue
        try:
            link = pcie.read_link(device)
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, device=name, source=pcie.SOURCE)
            continue
        expected, found = f"x{link.max_width} {link.max_speed:g} GT/s", f"x{link.width} {link.speed:g} GT/s"
        good = link.width >= link.max_width and link.speed >= link.max_speed
        reason = f"its link runs at {found} of {expected}"
        yield judged(good=good, reason=reason, fix=pcie.FIX, device=name, expected=expected, found=found, source=pcie.SOURCE)


CHECK = Check(
    "rdma_pcie",
    "The PCIe link of every RDMA device has the width and speed that both its ends can do.",
    "current_link_* and max_link_* in sysfs",
    _look,
    needs=(RDMA,),
)
