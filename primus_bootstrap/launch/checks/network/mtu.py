"""Check the MTU of every RDMA port: on RoCE the MTU of its interface, on InfiniBand the active MTU."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import RDMA, Check, Node, UnavailableError, Verdicts, pass_or_fail, unknown
from primus_bootstrap.launch.checks.rdma import active_ports, port_model
from primus_bootstrap.launch.checks.tools import run_tool
from primus_bootstrap.launch.detect import nics, sysfs

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.nics import Port

_FIX = "set the MTU of the interface and of the switch port; on InfiniBand, of the partition"


def _check(node: Node) -> Verdicts:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for port in active_ports(node):
        try:
            found[port_model(node, port)][port.name] = _active(node, port) if port.kind == nics.IB else _interface(node, port)
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=port.name, unit="bytes")
    for mtus in found.values():
        stated, usual = node.expected.get("rdma_mtu_bytes"), Counter(mtus.values()).most_common(1)[0][0]
        expected = usual if stated is None else int(stated)
        source = node.expected.source("rdma_mtu_bytes") or "the most frequent MTU of ports of the same device model"
        for name, mtu in mtus.items():
            fields = {"device": name, "expected": str(expected), "found": str(mtu), "unit": "bytes", "source": source}
            yield pass_or_fail(good=mtu == expected, reason=f"its MTU is {mtu}", fix=_FIX, **fields)


def _interface(node: Node, port: Port) -> int:
    mtus = {name: sysfs.read_int(node.host.path("sys", "class", "net", name, "mtu")) for name in port.netdevs}
    known = [mtu for mtu in mtus.values() if mtu is not None]
    if not known:
        raise UnavailableError(f"no interface of {port.name} reports its MTU", fix="see `rdma link`")
    return min(known)


def _active(node: Node, port: Port) -> int:
    text = run_tool(node.environment, ["ibv_devinfo", "-d", port.device, "-i", str(port.number)], install="ibverbs-utils")
    match = re.search(r"^\s*active_mtu:\s*(\d+)", text, re.MULTILINE)
    if match is None:
        raise UnavailableError(f"ibv_devinfo reports no active_mtu of {port.name}", fix=f"ibv_devinfo -d {port.device}")
    return int(match[1])


CHECK = Check(
    "rdma_mtu",
    "Every RDMA port has the expected MTU, or the MTU of most ports of its device model.",
    "RoCE: the interface in sysfs; InfiniBand: ibv_devinfo",
    _check,
    needs=(RDMA,),
)
