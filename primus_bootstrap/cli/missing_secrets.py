"""Generate the secrets that an inventory needs: `secrets init`, and the offer of `apply`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from primus_bootstrap.cli.console import count, emit, say
from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.state_folder import new_run_id
from primus_bootstrap.inventory.edit import generated_secrets
from primus_bootstrap.inventory.load import validate as validate_inventory

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.inventory.schema.specs import Option


@dataclass(frozen=True, slots=True)
class GeneratedSecrets:
    """The result: the variables without a value, the names that were added to `vault_file`, and its password.

    `created` says whether the password file is new.
    """

    cluster: Cluster
    missing: tuple[Option, ...]
    added: tuple[str, ...]
    vault_file: Path
    password_file: Path
    created: bool

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints. It contains no secret."""
        files = {"vault_file": str(self.vault_file), "password_file": str(self.password_file)}
        return {"cluster": self.cluster.name, "added": self.added, **files}


def generate_secrets(hosts: Path, *, output: Path | None = None, vault_password_file: Path | None = None) -> GeneratedSecrets:
    """Generate every secret without a value and write them to a Vault file, `group_vars/all/vault.yml` by default.

    Raises:
        InventoryError: hosts.yaml has a problem other than missing variables.
        PlanError: A file cannot be read or written.
    """
    cluster, password_file, missing = _find_missing(hosts, vault_password_file)
    target = output or cluster.path.parent / "group_vars" / "all" / "vault.yml"
    created = False
    added: tuple[str, ...] = ()
    if missing:
        with cluster_lock(cluster.state_dir.absolute(), verb="secrets init", run=new_run_id(time.time())):
            cluster, password_file, missing = _find_missing(hosts, vault_password_file)  # another command may have added them
            created = bool(missing) and not password_file.exists()
            if created:
                generated_secrets.create_password_file(password_file, is_state_folder=vault_password_file is None)
            added = generated_secrets.add_secrets(target, missing, generated_secrets.password_of(password_file)) if missing else ()
    return GeneratedSecrets(cluster, missing, added, target, password_file, created)


def offer_secrets(hosts: Path, error: InventoryError, *, vault_password_file: Path | None) -> Path | None:
    """Offer to generate the missing secrets, if nothing else is wrong and a person can answer.

    Returns:
        The file with the Vault password. None if the offer does not apply or was declined.
    """
    names = generated_secrets.only_missing_secrets(error.problems)
    if not names or not sys.stdin.isatty():
        return None
    say(f"{count(len(names), 'secret')} without a value: {', '.join(names)}")
    if not typer.confirm("Generate them now and write them, encrypted, to group_vars/all/vault.yml?", err=True):
        return None
    found = generate_secrets(hosts, vault_password_file=vault_password_file)
    print_secrets(found)
    say(f"Later commands need: --vault-password-file {found.password_file}")
    return found.password_file


def print_secrets(found: GeneratedSecrets) -> None:
    """Print what was generated and written, without the secrets."""
    for name in found.added:
        emit(f"generated {name}")
    emit(f"wrote {found.vault_file}" if found.added else f"{found.vault_file} already has every value")
    if found.created:
        emit(f"wrote the Vault password to {found.password_file}: keep a copy in a safe place, because only it opens the Vault file")


def default_password_file(cluster: Cluster) -> Path:
    """Return the file in which `secrets init` writes the Vault password unless another one is given."""
    return cluster.state_dir / "vault-password"


def _find_missing(hosts: Path, password_path: Path | None) -> tuple[Cluster, Path, tuple[Option, ...]]:
    """Return the cluster, its Vault password file, which may not exist, and the missing secrets.

    Raises:
        InventoryError: hosts.yaml has a problem other than missing variables.
    """
    cluster = _load_without_required(hosts, password_path if password_path and password_path.exists() else None)
    password_file = password_path or default_password_file(cluster)
    existing = password_file if password_file.exists() else None
    cluster = _load_without_required(hosts, existing)
    result = validate_inventory(hosts, vault_password_file=existing)
    if encrypted := [item.origin.file for item in result.deferred if not item.variable]:
        raise PlanError(f"{', '.join(encrypted)} cannot be read without its Vault password", fix="add --vault-password-file FILE")
    return cluster, password_file, generated_secrets.missing_secrets(result.problems)


def _load_without_required(hosts: Path, password_file: Path | None) -> Cluster:
    result = validate_inventory(hosts, vault_password_file=password_file, ignore_rules=frozenset({"required"}))
    if result.cluster is None:
        raise InventoryError(result.problems)
    return result.cluster
