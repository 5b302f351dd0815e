#!/usr/bin/python3 -Es
"""Slurm's HealthCheckProgram: drain the node if its health is fail, and resume it if it is pass.

The health comes from `primus-health read`. `unknown` changes nothing. Only drains whose reason begins with `primus: health:` are resumed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shared.slurm_commands import REASON_PREFIX, call, get_node

if TYPE_CHECKING:
    from shared.slurm_commands import Caller, NodeState

HEALTH_REASON = f"{REASON_PREFIX} health:"
GATE = "/usr/local/bin/primus-health"
# The description of this node. It has the name that Slurm uses.
FRAGMENT = Path("/etc/primus/slurm_node.json")
CALL_S = 20.0
PASS, FAIL = 0, 1
# Longer reasons are cut.
REASON_CHARS = 200


def update_arguments(status: int, reason: str, node: NodeState) -> list[str]:
    """Return the arguments of `scontrol update` for this health; none if the node does not change."""
    drained_by_health = node.drained and node.reason.startswith(HEALTH_REASON)
    if status == FAIL:
        text = " ".join(f"{HEALTH_REASON} {reason}".split())[:REASON_CHARS]
        unchanged = node.drained and (not drained_by_health or node.reason == text)
        return [] if unchanged else ["State=DRAIN", f"Reason={text}"]
    return ["State=RESUME"] if drained_by_health else []


def main(caller: Caller = call, fragment: Path = FRAGMENT) -> int:
    """Drain or resume the node by its health. Always returns 0: a failure of this program is not a fault of the node."""
    health = caller([GATE, "read"], CALL_S)
    if health.status not in (PASS, FAIL):
        return 0
    name = json.loads(fragment.read_text(encoding="utf-8"))["name"]
    try:
        node = get_node(name, caller)
    except ConnectionError:
        return 0
    arguments = update_arguments(health.status, health.text, node) if node else []
    if arguments:
        caller(["scontrol", "update", f"NodeName={name}", *arguments], CALL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
