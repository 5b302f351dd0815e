"""Reach the nodes of a lab over real SSH, with host keys checked strictly, and wait until they answer."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from primus_bootstrap.lab.lab_values import USER, LabError
from primus_bootstrap.lab.program import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_bootstrap.lab.lab_values import Lab, LabNode

_Result = TypeVar("_Result")
_PARALLEL = 8
_READY_S = 90.0


@dataclass(frozen=True, slots=True)
class Reached:
    """What SSH found: `ssh` is whether a login with the lab's key and the pinned host key worked, `systemd` its own word."""

    ssh: bool
    systemd: str
    reason: str = ""


def ssh_argv(lab: Lab, node: LabNode, command: str) -> list[str]:
    """Return an ssh command that takes nothing from the user's own configuration and trusts only pinned keys."""
    return [
        "ssh",
        *("-F", "none"),
        *("-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=5"),
        *("-o", "IdentitiesOnly=yes"),
        *("-o", "StrictHostKeyChecking=yes"),
        *("-o", f'UserKnownHostsFile="{lab.known_hosts}"'),
        *("-i", str(lab.key_file)),
        f"{USER}@{node.address}",
        command,
    ]


def log_in(lab: Lab, node: LabNode, *, timeout_s: float = 10.0) -> Reached:
    """Log in once and ask systemd how it is."""
    try:
        done = run(ssh_argv(lab, node, "systemctl is-system-running"), timeout_s=timeout_s, check=False)
    except LabError:
        return Reached(ssh=False, systemd="unknown", reason=f"no answer within {timeout_s:g} s")
    # 255 is ssh's own failure; anything else is systemctl's answer.
    if done.code == 255:
        return Reached(ssh=False, systemd="unknown", reason=done.err.strip().splitlines()[-1] if done.err.strip() else "ssh failed")
    return Reached(ssh=True, systemd=done.out.strip() or "unknown")


def listens(node: LabNode, *, timeout_s: float) -> bool:
    """Return whether sshd greets on the node's address."""
    try:
        with socket.create_connection((node.address, 22), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_for_nodes(lab: Lab, nodes: Sequence[LabNode]) -> dict[str, Reached]:
    """Wait until every node lets us in and systemd has finished starting.

    Raises:
        LabError: At least one did not within 90 s.
    """
    reached = on_each(nodes, lambda node: _wait(lab, node))
    lost = {name: found.reason for name, found in reached.items() if not found.ssh}
    if lost:
        raise LabError(
            "no SSH login on " + "; ".join(f"{name}: {reason}" for name, reason in lost.items()),
            fix="`primus-bootstrap lab status` shows each node; `lab down` and `lab up` make them anew",
        )
    return reached


def on_each(nodes: Sequence[LabNode], work: Callable[[LabNode], _Result]) -> dict[str, _Result]:
    """Do something for every node at once; return the results by node."""
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return dict(zip((node.name for node in nodes), pool.map(work, nodes), strict=True))


def _wait(lab: Lab, node: LabNode) -> Reached:
    deadline = time.monotonic() + _READY_S
    found = Reached(ssh=False, systemd="unknown", reason=f"nothing listens on {node.address}:22")
    while time.monotonic() < deadline:
        if listens(node, timeout_s=2.0):
            found = log_in(lab, node)
            if found.ssh and found.systemd not in ("starting", "initializing", "unknown"):
                return found
        time.sleep(0.1)
    return found
