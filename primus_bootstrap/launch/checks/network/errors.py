"""Does an RDMA port count errors right now? The counters are read twice: what they say since their reset is no verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit, table
from primus_bootstrap.launch.checks.model import RDMA, Check, judged, unknown
from primus_bootstrap.launch.checks.rdma import ports_up
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port

_FIX = "clean or replace the cable or transceiver; see the switch port's counters"


def _look(node: Node) -> Iterator[Verdict]:
    ports = ports_up(node)
    before = {port.name: _counters(node, port) for port in ports}
    time.sleep(limit("rdma_error_seconds").value)
    source = table("rdma_counters")["source"]
    for port in ports:
        old, new = before[port.name], _counters(node, port)
        if not new:
            yield unknown("it shows no error counters", device=port.name, source=source, fix="see `rdma statistic show`")
            continue
        grown = ", ".join(f"{name} +{count - old.get(name, 0)}" for name, count in new.items() if count > old.get(name, 0))
        total = sum(new.values())
        fields = {"device": port.name, "expected": "0 new", "found": grown or f"0 new ({total} since their reset)", "source": source}
        yield judged(good=not grown, reason=f"it counts errors now: {grown}", fix=_FIX, **fields)


def _counters(node: Node, port: Port) -> dict[str, int]:
    folder = node.host.path("sys", "class", "infiniband", port.device, "ports", str(port.number))
    read = {
        f"{kind}/{name}": sysfs.read_int(folder / kind / name)
        for kind, names in table("rdma_counters")["counters"].items()
        for name in names
    }
    return {name: count for name, count in read.items() if count is not None}


CHECK = Check("rdma_errors", "No RDMA port counts errors right now.", "counters and hw_counters in sysfs, twice", _look, needs=(RDMA,))
