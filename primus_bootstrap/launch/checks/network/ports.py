"""Are the RDMA ports up that should be: as many as expected, ACTIVE and LinkUp? Where gpu.json names those of training, they are these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check, judged, listed, passed, skipped, unknown
from primus_bootstrap.launch.detect import nics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port

_SOURCE = "/sys/class/infiniband/*/ports/*/{state,phys_state}, https://docs.kernel.org/admin-guide/abi-stable.html"
_FIX = "look at cable, transceiver and switch port; on InfiniBand at the subnet manager"


def _look(node: Node) -> Iterator[Verdict]:
    listed(node.host.path("sys", "class", "infiniband"))
    ports = nics.read_ports(node.host)
    wanted = node.expected.get("rdma_ports")
    if not ports and not wanted:
        yield skipped("no RDMA device", expected="" if wanted is None else str(wanted))
        return
    up = [port for port in ports if _is_up(port)]
    # One for storage does not stand in for one of training, unless somebody stated a mere number.
    named = () if node.expected.stated("rdma_ports") else tuple(node.expected.training_ports)
    yield _count_named(node, named, up) if named else _count(node, ports, up)
    enough = wanted is not None and (bool(named) or len(up) >= wanted)
    for port in ports:
        fields = {
            "device": port.name,
            "expected": "ACTIVE LinkUp",
            "found": f"{port.state} {port.physical_state}".strip(),
            "source": _SOURCE,
        }
        if port in up:
            yield passed(**fields)
        elif not port.state or not port.physical_state:
            yield unknown("its state cannot be read", fix="see `dmesg` for its driver", **fields)
        elif port.name not in named and (enough or (wanted is None and port.physical_state in ("Disabled", "Polling", "Sleep"))):
            yield skipped("not connected, and not among the ports that are expected", **fields)
        else:
            yield judged(good=False, reason=f"it is {fields['found']}", fix=_FIX, **fields)


def _is_up(port: Port) -> bool:
    return port.state == "ACTIVE" and port.physical_state == "LinkUp"


def _count(node: Node, ports: tuple[Port, ...], up: list[Port]) -> Verdict:
    wanted = node.expected.get("rdma_ports")
    fields = {"found": str(len(up)), "unit": "ports ACTIVE", "source": node.expected.source("rdma_ports")}
    if wanted is not None:
        down = ", ".join(port.name for port in ports if port not in up) or "devices are missing"
        return judged(good=len(up) >= wanted, reason=f"not ACTIVE: {down}", fix=_FIX, expected=f">= {wanted:g}", **fields)
    if up:
        return passed(**fields)
    return unknown("no port is ACTIVE, and nobody said how many should be", fix="state rdma_ports in --expect-json", **fields)


def _count_named(node: Node, named: tuple[str, ...], up: list[Port]) -> Verdict:
    down = sorted(set(named) - {port.name for port in up}, key=nics.natural)
    fields = {"expected": str(len(named)), "found": str(len(named) - len(down)), "unit": "ports of training ACTIVE"}
    reason = f"not ACTIVE, or its device is missing: {', '.join(down)}"
    return judged(good=not down, reason=reason, fix=_FIX, source=node.expected.source("rdma_ports"), **fields)


CHECK = Check("rdma_ports", "As many RDMA ports are up as expected.", "state and phys_state in /sys/class/infiniband", _look)
