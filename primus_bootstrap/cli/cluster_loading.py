"""Load the cluster of a verb that does not run a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.cli.options import ask_password
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster


def open_cluster(hosts: Path, *, vault_password_file: Path | None, ask_vault_pass: bool) -> Cluster:
    """Return the checked cluster; ask for the Vault password first if the user wants to type it.

    Raises:
        InventoryError: With every problem of hosts.yaml and its variable files.
    """
    password = ask_password("Vault password", ask=ask_vault_pass)
    return load_cluster(hosts, vault_password_file=vault_password_file, ask_vault_pass=password)
