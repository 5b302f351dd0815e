"""Check that the expected RDMA ports are ACTIVE and LinkUp: those that gpu.json lists for training, else the expected number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, list_names, pass_or_fail, passed, skipped, unknown
from primus_bootstrap.launch.detect import nics

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.nics import Port

_SOURCE = "/sys/class/infiniband/*/ports/*/{state,phys_state}, https://docs.kernel.org/admin-guide/abi-stable.html"
_FIX = "check cable, transceiver and switch port; on InfiniBand, also the subnet manager"


def _check(node: Node) -> Verdicts:
    list_names(node.host.path("sys", "class", "infiniband"))
    ports = nics.read_ports(node.host)
    expected = node.expected.get("rdma_ports")
    if not ports and not expected:
        yield skipped("no RDMA device", expected="" if expected is None else str(expected))
        return
    up = [port for port in ports if _is_up(port)]
    # A storage port does not replace a training port, unless the inventory states a number only.
    named = () if node.expected.stated("rdma_ports") else tuple(node.expected.training_ports)
    yield _count_named(node, named, up) if named else _count(node, ports, up)
    enough = expected is not None and (bool(named) or len(up) >= expected)
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
            yield unknown("its state cannot be read", fix="see `dmesg` for messages of its driver", **fields)
        elif port.name not in named and (enough or (expected is None and port.physical_state in ("Disabled", "Polling", "Sleep"))):
            yield skipped("not connected, and not one of the expected ports", **fields)
        else:
            yield pass_or_fail(good=False, reason=f"its state is {fields['found']}", fix=_FIX, **fields)


def _is_up(port: Port) -> bool:
    return port.state == "ACTIVE" and port.physical_state == "LinkUp"


def _count(node: Node, ports: tuple[Port, ...], up: list[Port]) -> Verdict:
    expected = node.expected.get("rdma_ports")
    fields = {"found": str(len(up)), "unit": "ports ACTIVE", "source": node.expected.source("rdma_ports")}
    if expected is not None:
        down = ", ".join(port.name for port in ports if port not in up)
        reason = f"not ACTIVE: {down}" if down else f"only {len(ports)} ports exist"
        return pass_or_fail(good=len(up) >= expected, reason=reason, fix=_FIX, expected=f">= {expected:g}", **fields)
    if up:
        return passed(**fields)
    return unknown(
        "no port is ACTIVE, and the expected number is not known",
        fix="set rdma_ports in bench_expected (hosts.yaml) or in --expect-json",
        **fields,
    )


def _count_named(node: Node, named: tuple[str, ...], up: list[Port]) -> Verdict:
    down = sorted(set(named) - {port.name for port in up}, key=nics.natural)
    fields = {"expected": str(len(named)), "found": str(len(named) - len(down)), "unit": "training ports ACTIVE"}
    reason = f"not ACTIVE or missing: {', '.join(down)}"
    return pass_or_fail(good=not down, reason=reason, fix=_FIX, source=node.expected.source("rdma_ports"), **fields)


CHECK = Check("rdma_ports", "The expected RDMA ports are up.", "state and phys_state in /sys/class/infiniband", _check)
