#!/usr/bin/python3 -Es
"""Slurm's HealthCheckProgram: take a node out of service when its health says fail, and put it back when it says pass.

It reads health through `primus-health` and nothing else. Unknown leaves the node as it is: only a fail is a fail. A drain by
anybody else is never lifted, nor one for another reason of this project's: only what begins with `primus: health:`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_ask import OWN, call, look_at_node

if TYPE_CHECKING:
    from slurm_ask import Caller, SeenNode

DRAINED_HERE = f"{OWN} health:"
GATE = "/usr/local/bin/primus-health"
# What this node is, as the controllers have been told; the name there is the one that Slurm knows.
FRAGMENT = Path("/etc/primus/slurm_node.json")
CALL_S = 20.0
PASS, FAIL = 0, 1
# `sinfo -R` and people read the beginning.
REASON_CHARS = 200


def wanted(status: int, reason: str, node: SeenNode) -> list[str]:
    """Return the words for `scontrol update` that the health asks for; none where the node stays as it is."""
    ours = node.drained and node.reason.startswith(DRAINED_HERE)
    if status == FAIL:
        text = " ".join(f"{DRAINED_HERE} {reason}".split())[:REASON_CHARS]
        return [] if node.drained and (not ours or node.reason == text) else ["State=DRAIN", f"Reason={text}"]
    return ["State=RESUME"] if ours else []


def main(caller: Caller = call, fragment: Path = FRAGMENT) -> int:
    """Bring the node's state to what its health asks for; always 0, as nothing here is a fault of the node."""
    health = caller([GATE, "read"], CALL_S)
    if health.status not in (PASS, FAIL):
        return 0
    name = json.loads(fragment.read_text(encoding="utf-8"))["name"]
    try:
        node = look_at_node(name, caller)
    except ConnectionError:
        return 0
    change = wanted(health.status, health.text, node) if node else []
    if change:
        caller(["scontrol", "update", f"NodeName={name}", *change], CALL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
