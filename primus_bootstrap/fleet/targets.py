"""From a cluster's hosts to what the fan-out needs to reach them: the only place here that reads inventory values."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from primus_bootstrap.fleet.messages import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.inventory.cluster import Cluster


def targets_of(cluster: Cluster, hosts: Iterable[str]) -> tuple[Target, ...]:
    """Return how to reach each of these hosts."""
    return tuple(target_of(cluster, host) for host in hosts)


def target_of(cluster: Cluster, host: str) -> Target:
    """Return how to reach one host; a password in the inventory counts, as it does for Ansible."""
    connection = cluster.connection(host)
    merged = cluster.view.variables(host)

    def text(*names: str) -> str:
        return next((str(merged[name]) for name in names if merged.get(name)), "")

    python = text("ansible_python_interpreter")
    return Target(
        host=host,
        address=connection.address,
        port=connection.port,
        user=connection.user,
        key_file=connection.private_key_file,
        ssh_arguments=(*shlex.split(connection.ssh_common_args), *shlex.split(connection.ssh_extra_args)),
        # `auto`, `auto_silent` and their like leave the choice to Ansible.
        python="" if python.startswith("auto") else python,
        local=text("ansible_connection").rpartition(".")[2] == "local",
        password=text("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"),
        become_password=text("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
    )
