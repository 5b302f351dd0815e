"""Connect to the nodes of a lab over SSH with pinned host keys, and wait until they are ready."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import USER, LabError, lab_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_bootstrap.lab.lab_values import Lab, LabNode

_Result = TypeVar("_Result")
_PARALLEL = 8
_READY_S = 90.0


@dataclass(frozen=True, slots=True)
class LoginResult:
    """The result of an SSH login: whether it worked, systemd's state (`running`, `degraded`, …), and why it failed."""

    ssh: bool
    systemd: str
    reason: str = ""


def ssh_argv(lab: Lab, node: LabNode, command: str) -> list[str]:
    """Return an ssh command that ignores the user's configuration and trusts only pinned keys."""
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


def log_in(lab: Lab, node: LabNode, *, timeout_s: float = 10.0) -> LoginResult:
    """Log in once and read systemd's state."""
    try:
        done = run(ssh_argv(lab, node, "systemctl is-system-running"), timeout_s=timeout_s, check=False)
    except LabError:
        return LoginResult(ssh=False, systemd="unknown", reason=f"no answer within {timeout_s:g} s")
    # 255 is a failure of ssh; any other exit code is systemctl's.
    if done.code == 255:
        return LoginResult(
            ssh=False, systemd="unknown", reason=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "ssh failed"
        )
    return LoginResult(ssh=True, systemd=done.stdout.strip() or "unknown")


def sshd_answers(node: LabNode, *, timeout_s: float) -> bool:
    """Return whether sshd sends its banner on the node's address."""
    try:
        with socket.create_connection((node.address, 22), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_for_nodes(lab: Lab, nodes: Sequence[LabNode]) -> dict[str, LoginResult]:
    """Wait until SSH login works on every node and systemd has finished starting.

    Raises:
        LabError: At least one node was not ready within 90 s.
    """
    reached = for_each_node(nodes, lambda node: _wait(lab, node))
    lost = {name: found.reason for name, found in reached.items() if not found.ssh}
    if lost:
        raise LabError(
            "SSH login failed on " + "; ".join(f"{name}: {reason}" for name, reason in lost.items()),
            fix=f"see their state: `{lab_command('status', lab.name, lab.directory)}`; "
            f"or recreate them: `{lab_command('down', lab.name, lab.directory)}`, then `{lab_command('up', lab.name, lab.directory)}`",
        )
    return reached


def for_each_node(nodes: Sequence[LabNode], work: Callable[[LabNode], _Result]) -> dict[str, _Result]:
    """Call a function for every node in parallel; return the results by node."""
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return dict(zip((node.name for node in nodes), pool.map(work, nodes), strict=True))


def _wait(lab: Lab, node: LabNode) -> LoginResult:
    deadline = time.monotonic() + _READY_S
    found = LoginResult(ssh=False, systemd="unknown", reason=f"nothing listens on {node.address}:22")
    while time.monotonic() < deadline:
        if sshd_answers(node, timeout_s=2.0):
            found = log_in(lab, node)
            if found.ssh and found.systemd not in ("starting", "initializing", "unknown"):
                return found
        time.sleep(0.1)
    return found
