"""Check width and speed of every RDMA device's PCI Express link. Network cards lower neither when idle."""

from __future__ import annotations

from primus_bootstrap.launch.checks import pcie
from primus_bootstrap.launch.checks.model import RDMA, Check, Node, UnavailableError, Verdicts, list_names, pass_or_fail, skipped, unknown
from primus_bootstrap.launch.detect import sysfs


def _check(node: Node) -> Verdicts:
    folder = node.host.path("sys", "class", "infiniband")
    for name in list_names(folder):
        device = folder / name / "device"
        if not device.exists() or sysfs.link_name(device / "physfn"):
            yield skipped("a virtual device has no link", device=name)
            continue
        try:
            link = pcie.read_link(device)
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=name, source=pcie.SOURCE)
            continue
        expected, found = f"x{link.max_width} {link.max_speed:g} GT/s", f"x{link.width} {link.speed:g} GT/s"
        good = link.width >= link.max_width and link.speed >= link.max_speed
        reason = f"the link runs at {found} instead of {expected}"
        yield pass_or_fail(good=good, reason=reason, fix=pcie.FIX, device=name, expected=expected, found=found, source=pcie.SOURCE)


CHECK = Check(
    "rdma_pcie",
    "The PCIe link of every RDMA device has the maximum width and speed of both its ends.",
    "current_link_* and max_link_* in sysfs",
    _check,
    needs=(RDMA,),
)
