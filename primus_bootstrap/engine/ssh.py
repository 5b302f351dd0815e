"""Command lines for ssh: how to reach a host, which host keys to accept, and a check that a host answers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command

if TYPE_CHECKING:
    from primus_bootstrap.inventory.cluster import Cluster, Connection

_CONNECT_TIMEOUT_S = 10


def known_hosts_path(cluster: Cluster) -> Path:
    """Return the file with the pinned host keys of a cluster."""
    return cluster.state_dir.absolute() / "known_hosts"


def strict_host_keys(known_hosts: Path) -> list[str]:
    """Return the arguments that make ssh accept the pinned keys and no others.

    ssh takes the first value of an option, so pass these arguments first. `ansible_ssh_common_args` of the inventory can then
    add a bastion, but cannot disable the check.
    """
    return [*_known_hosts_options(known_hosts), "-o", "StrictHostKeyChecking=yes"]


def first_contact(known_hosts: Path) -> list[str]:
    """Return the arguments that make ssh add a new key to `known_hosts`, with the host name in plain text."""
    return [*_known_hosts_options(known_hosts), "-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=no"]


def ssh_name(address: str, port: int) -> str:
    """Return the form in which known_hosts stores an address."""
    return address if port == 22 else f"[{address}]:{port}"


def route_arguments(link: Connection) -> list[str]:
    """Return the arguments for port, user, key and bastion of a host."""
    return [
        *(["-p", str(link.port)] if link.port != 22 else []),
        *(["-l", link.user] if link.user else []),
        *(["-i", str(Path(link.private_key_file).expanduser())] if link.private_key_file else []),
        *shlex.split(link.ssh_common_args),
        *shlex.split(link.ssh_extra_args),
    ]


def ssh_arguments(cluster: Cluster, host: str) -> list[str]:
    """Return the command line that logs in to a host as Ansible does, with the host key checked."""
    link = cluster.connection(host)
    return ["ssh", *strict_host_keys(known_hosts_path(cluster)), *route_arguments(link), link.address]


def unreachable_reason(cluster: Cluster, host: str) -> str:
    """Return ssh's error message if a host does not answer, or an empty string if it answers."""
    _, *arguments = ssh_arguments(cluster, host)
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_TIMEOUT_S}", "-o", "ControlMaster=no", "-o", "ControlPath=none"]
    try:
        done = run_command(["ssh", *options, *arguments, "true"], timeout_s=3 * _CONNECT_TIMEOUT_S)
    except TimeoutError:
        return f"no answer within {3 * _CONNECT_TIMEOUT_S} s"
    # ssh's own failures end with 255. "Permission denied" comes from the host: it answers, but wants a password.
    if done.code != 255 or "Permission denied" in done.stderr:
        return ""
    return done.stderr.strip().rpartition("\n")[2] or "ssh ended without an error message"


def _known_hosts_options(path: Path) -> list[str]:
    quoted = str(path).replace("%", "%%")  # ssh expands % in this option, and splits it at spaces
    return ["-o", f'UserKnownHostsFile="{quoted}"', "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"]
