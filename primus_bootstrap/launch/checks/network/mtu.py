"""Is the MTU of every RDMA port the expected one, or that of its like? On RoCE it is the interface's, on InfiniBand the active one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.ask import ask
from primus_bootstrap.launch.checks.model import RDMA, CannotTellError, Check, judged, unknown
from primus_bootstrap.launch.checks.rdma import kind_of, ports_up
from primus_bootstrap.launch.detect import nics, sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port

_FIX = "set the MTU of the interface and of the switch port; on InfiniBand that of the partition"


def _look(node: Node) -> Iterator[Verdict]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for port in ports_up(node):
        try:
            found[kind_of(node, port)][port.name] = _active(node, port) if port.kind == nics.IB else _interface(node, port)
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, device=port.name, unit="bytes")
    for mtus in found.values():
        wanted, usual = node.expected.get("rdma_mtu_bytes"), Counter(mtus.values()).most_common(1)[0][0]
        expected = usual if wanted is None else int(wanted)
        source = node.expected.source("rdma_mtu_bytes") or "what most ports of the same device model have"
        for name, mtu in mtus.items():
            fields = {"device": name, "expected": str(expected), "found": str(mtu), "unit": "bytes", "source": source}
            yield judged(good=mtu == expected, reason=f"its MTU is {mtu}", fix=_FIX, **fields)


def _interface(node: Node, port: Port) -> int:
    mtus = {name: sysfs.read_int(node.host.path("sys", "class", "net", name, "mtu")) for name in port.netdevs}
    known = [mtu for mtu in mtus.values() if mtu is not None]
    if not known:
        raise CannotTellError(f"no interface of {port.name} shows its MTU", fix="see `rdma link`")
    return min(known)


def _active(node: Node, port: Port) -> int:
    text = ask(node.environment, ["ibv_devinfo", "-d", port.device, "-i", str(port.number)], install="ibverbs-utils")
    match = re.search(r"^\s*active_mtu:\s*(\d+)", text, re.MULTILINE)
    if match is None:
        raise CannotTellError(f"ibv_devinfo shows no active_mtu of {port.name}", fix=f"ibv_devinfo -d {port.device}")
    return int(match[1])


CHECK = Check(
    "rdma_mtu",
    "The MTU of every RDMA port is the expected one, or that of its like.",
    "RoCE: the interface in sysfs; InfiniBand: ibv_devinfo",
    _look,
    needs=(RDMA,),
)
