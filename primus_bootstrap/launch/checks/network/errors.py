"""Check that no error counter of an RDMA port increases between two reads. The totals since the last reset are not evaluated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit, table
from primus_bootstrap.launch.checks.model import RDMA, Check, Node, Verdicts, pass_or_fail, unknown
from primus_bootstrap.launch.checks.rdma import active_ports
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.nics import Port

_FIX = "clean or replace the cable or transceiver; check the switch port's counters"


def _check(node: Node) -> Verdicts:
    ports = active_ports(node)
    before = {port.name: _counters(node, port) for port in ports}
    time.sleep(limit("rdma_error_seconds").value)
    source = table("rdma_counters")["source"]
    for port in ports:
        old, new = before[port.name], _counters(node, port)
        if not new:
            yield unknown("the port has no error counters", device=port.name, source=source, fix="see `rdma statistic show`")
            continue
        increased = ", ".join(f"{name} +{count - old.get(name, 0)}" for name, count in new.items() if count > old.get(name, 0))
        total = sum(new.values())
        fields = {"device": port.name, "expected": "0 new", "found": increased or f"0 new ({total} since the reset)", "source": source}
        yield pass_or_fail(good=not increased, reason=f"error counters increase: {increased}", fix=_FIX, **fields)


def _counters(node: Node, port: Port) -> dict[str, int]:
    folder = node.host.path("sys", "class", "infiniband", port.device, "ports", str(port.number))
    counts = {
        f"{kind}/{name}": sysfs.read_int(folder / kind / name)
        for kind, names in table("rdma_counters")["counters"].items()
        for name in names
    }
    return {name: count for name, count in counts.items() if count is not None}


CHECK = Check(
    "rdma_errors", "No error counter of an RDMA port increases.", "counters and hw_counters in sysfs, read twice", _check, needs=(RDMA,)
)
