"""Check that a program can lock unlimited memory, as RDMA requires."""

from __future__ import annotations

import resource

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, skipped
from primus_bootstrap.launch.detect import nics

_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


def _check(node: Node) -> Verdicts:
    if not any(port.state == "ACTIVE" for port in nics.read_ports(node.host)):
        return [skipped("no active RDMA port")]
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{limit / 2**30:.2f} GiB"
    fix = "apply the phase baseline; for a container, pass --ulimit memlock=-1"
    reason = "the limit of locked memory is too low"
    return [pass_or_fail(good=unlimited, reason=reason, fix=fix, expected="unlimited", found=found, source=_SOURCE)]


CHECK = Check("memlock", "On nodes with RDMA, the limit of locked memory is unlimited.", "getrlimit", _check)
