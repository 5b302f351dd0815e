"""Check that the name of node 0 can be resolved."""

from __future__ import annotations

import socket

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, passed, skipped


def _check(node: Node) -> Verdicts:
    address = node.environment.get("MASTER_ADDR", "")
    if not address:
        return [skipped("a run on one node")]
    try:
        found = socket.getaddrinfo(address, None)[0][4][0]
    except OSError as error:
        fix = "correct /etc/hosts or the name service of this node"
        return [pass_or_fail(good=False, reason=f"the name cannot be resolved: {error}", fix=fix, found=address)]
    return [passed(found=f"{address} is {found}")]


CHECK = Check("node_0", "The name of node 0 can be resolved.", "MASTER_ADDR and the name service", _check)
