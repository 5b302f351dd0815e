"""What the checks of RDMA ports share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import CannotTellError
from primus_bootstrap.launch.detect import nics, sysfs

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port


def ports_up(node: Node) -> tuple[Port, ...]:
    """Return the ports that are ACTIVE.

    Raises:
        CannotTellError: There is none.
    """
    found = tuple(port for port in nics.read_ports(node.host) if port.state == "ACTIVE")
    if not found:
        raise CannotTellError("no RDMA port is ACTIVE", fix="see preflight_rdma_ports")
    return found


def kind_of(node: Node, port: Port) -> str:
    """Return what a port has to be compared with: its link layer and the PCI ids of its device."""
    device = node.host.path("sys", "class", "infiniband", port.device, "device")
    ids = ":".join(sysfs.read_text(device / name) or "" for name in ("vendor", "device"))
    return f"{port.kind} {ids}"
