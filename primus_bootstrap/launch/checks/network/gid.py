"""Check that every active RoCE port has a RoCE v2 GID with an IPv4 address."""

from __future__ import annotations

from primus_bootstrap.launch.checks.model import RDMA, Check, Node, Verdicts, pass_or_fail, skipped
from primus_bootstrap.launch.checks.rdma import active_ports
from primus_bootstrap.launch.detect import nics

_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_IB_GID_INDEX); gids and gid_attrs in sysfs"


def _check(node: Node) -> Verdicts:
    roce = [port for port in active_ports(node) if port.kind == nics.ROCE]
    if not roce:
        yield skipped("no RoCE port is ACTIVE")
    for port in roce:
        found = "none" if port.gid_index is None else f"index {port.gid_index}"
        fields = {"device": port.name, "expected": "a RoCE v2 GID with an IPv4 address", "found": found, "source": _SOURCE}
        fix = f"configure an IPv4 address on {' or '.join(port.netdevs) or 'its interface'}"
        yield pass_or_fail(good=port.gid_index is not None, reason="no RoCE v2 GID with an IPv4 address", fix=fix, **fields)


CHECK = Check(
    "rdma_gid", "Every active RoCE port has a RoCE v2 GID with an IPv4 address.", "gids and gid_attrs in sysfs", _check, needs=(RDMA,)
)
