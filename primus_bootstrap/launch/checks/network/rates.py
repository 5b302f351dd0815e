"""Does every RDMA port that is up run at the expected rate, or at that of its like?"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import RDMA, Check, judged, unknown
from primus_bootstrap.launch.checks.rdma import kind_of, ports_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.nics import Port
    from primus_bootstrap.launch.records import Record

_FIX = "look at cable, transceiver and the switch port's speed; a port that lost lanes runs at a part of its rate"


def _look(node: Node) -> Iterator[Record]:
    wanted = node.expected.get("rdma_rate_gbit_per_s")
    kinds: dict[str, list[Port]] = defaultdict(list)
    for port in ports_up(node):
        kinds[kind_of(node, port)].append(port)
    for kind in kinds.values():
        best = max(port.rate_gbit_per_s or 0.0 for port in kind)
        # Ports beside those of training (storage, management) are slower by build: the kind as a whole is, not one port of it.
        least = wanted if wanted is not None and best >= wanted else best
        source = node.expected.source("rdma_rate_gbit_per_s") if least == wanted else "the fastest port of the same device model"
        for port in kind:
            fields = {"device": port.name, "expected": f">= {least:g}", "unit": "Gbit/s", "source": source}
            if port.rate_gbit_per_s is None:
                yield unknown("its rate cannot be read", fix="see `dmesg` for its driver", **fields)
                continue
            found = f"{port.rate_gbit_per_s:g}"
            yield judged(good=port.rate_gbit_per_s >= least, reason=f"it runs at {found} Gbit/s", fix=_FIX, found=found, **fields)
    yield from _fast_enough(node, [port for kind in kinds.values() for port in kind])


def _fast_enough(node: Node, ports: list[Port]) -> Iterator[Record]:
    """Judge that there are as many ports of the expected rate as ports are expected."""
    rate, count = node.expected.get("rdma_rate_gbit_per_s"), node.expected.get("rdma_ports")
    if rate is None:
        return
    fast = sum((port.rate_gbit_per_s or 0.0) >= rate for port in ports)
    least = 1 if count is None else int(count)
    fields = {
        "expected": f">= {least}",
        "found": str(fast),
        "unit": f"ports of {rate:g} Gbit/s",
        "source": node.expected.source("rdma_rate_gbit_per_s"),
    }
    yield judged(good=fast >= least, reason=f"{fast} ports run at {rate:g} Gbit/s or more", fix=_FIX, **fields)


CHECK = Check(
    "rdma_rate",
    "Every RDMA port that is up runs at the expected rate, or at that of its like.",
    "rate in /sys/class/infiniband",
    _look,
    needs=(RDMA,),
)
