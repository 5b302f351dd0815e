"""Whether one host answers over SSH at all, asked with the key that is pinned for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.engine.hostkeys import ssh_arguments

if TYPE_CHECKING:
    from primus_bootstrap.inventory.cluster import Cluster

CONNECT_TIMEOUT_S = 10
# What ssh says where a host answers and does not let this user in without a password.
_REFUSED = "Permission denied"


def why_silent(cluster: Cluster, host: str) -> str:
    """Return what keeps a host from answering, in ssh's words; an empty string where it answers."""
    _, *arguments = ssh_arguments(cluster, host)
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "-o", "ControlMaster=no", "-o", "ControlPath=none"]
    try:
        done = run_command(["ssh", *options, *arguments, "true"], timeout_s=3 * CONNECT_TIMEOUT_S)
    except TimeoutError:
        return f"no answer within {3 * CONNECT_TIMEOUT_S} s"
    if done.code != 255 or _REFUSED in done.stderr:  # 255 is ssh's own; anything else came from the host
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1] if said else "ssh ended without saying why"
