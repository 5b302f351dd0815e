"""Return the connection settings of a cluster's hosts for the fan-out."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from primus_bootstrap.fleet.messages import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.inventory.cluster import Cluster


def targets_of(cluster: Cluster, hosts: Iterable[str]) -> tuple[Target, ...]:
    """Return the connection settings of these hosts."""
    return tuple(target_of(cluster, host) for host in hosts)


def target_of(cluster: Cluster, host: str) -> Target:
    """Return the connection settings of one host, including passwords in the inventory."""
    connection = cluster.connection(host)
    variables = cluster.view.variables(host)

    def text(*names: str) -> str:
        return next((str(variables[name]) for name in names if variables.get(name)), "")

    python = text("ansible_python_interpreter")
    return Target(
        host=host,
        address=connection.address,
        port=connection.port,
        user=connection.user,
        key_file=connection.private_key_file,
        ssh_arguments=(*shlex.split(connection.ssh_common_args), *shlex.split(connection.ssh_extra_args)),
        # With `auto` and its variants Ansible chooses the interpreter.
        python="" if python.startswith("auto") else python,
        local=text("ansible_connection").rpartition(".")[2] == "local",
        password=text("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"),
        become_password=text("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
    )
