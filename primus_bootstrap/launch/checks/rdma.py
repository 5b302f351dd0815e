"""Functions that the checks of RDMA ports share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import UnavailableError
from primus_bootstrap.launch.detect import nics, sysfs

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port


def active_ports(node: Node) -> tuple[Port, ...]:
    """Return the ports in the state ACTIVE.

    Raises:
        UnavailableError: No port is ACTIVE.
    """
    found = tuple(port for port in nics.read_ports(node.host) if port.state == "ACTIVE")
    if not found:
        raise UnavailableError("no RDMA port is ACTIVE", fix="see preflight_rdma_ports")
    return found


def port_model(node: Node, port: Port) -> str:
    """Return link layer and PCI ids: ports are compared only if these are equal."""
    device = node.host.path("sys", "class", "infiniband", port.device, "device")
    ids = ":".join(sysfs.read_text(device / name) or "" for name in ("vendor", "device"))
    return f"{port.kind} {ids}"
