"""Generated secrets in a Vault file: values are made, sealed and written here, and never leave this module in plain text."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.ansible import view
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.vault import Vault, open_vault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.schema.specs import Option

_BYTES = 32  # 256 bits of randomness, 43 characters that need no quoting in shells, URLs and INI files
_HEAD = "# Written by primus-bootstrap secrets init; see and change it with: ansible-vault edit\n"


def missing_secrets(problems: Iterable[Problem]) -> tuple[Option, ...]:
    """Return the secrets among the required variables that validation misses.

    The rule `required` knows which role runs where; its messages begin with the variable's name.
    """
    names = {problem.what.partition(" ")[0] for problem in problems if problem.rule == "required"}
    return tuple(option for option in load_options().values() if option.no_log and option.name in names)


def password_of(path: Path) -> Vault:
    """Return the Vault that the password in a file, or printed by a program, opens.

    Raises:
        InventoryError: the file gives no password.
    """
    view.use_our_settings()
    return open_vault(view.make_loader(), password_file=path, password=None)


def make_password_file(path: Path, *, own_folder: bool = False) -> None:
    """Write a new Vault password that only its owner may read.

    Its folder gets a `.gitignore` for all files, where the folder is made now or is the cluster's own (`own_folder`).

    Raises:
        PlanError: the file is there already or cannot be written.
    """
    try:
        if own_folder or not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"{secrets.token_urlsafe(_BYTES)}\n")
    except OSError as error:
        fix = "give a place that you may write to: --vault-password-file"
        raise PlanError(f"{path} cannot be written: {error.strerror}", fix=fix) from error


def read_vault_file(path: Path, vault: Vault) -> str:
    """Return the text of a Vault file; empty where there is none.

    Raises:
        PlanError: it is not encrypted, or the password does not open it.
    """
    if not path.exists():
        return ""
    data = path.read_bytes()
    if not data.startswith(b"$ANSIBLE_VAULT;"):
        raise PlanError(f"{path} is not encrypted", fix=f"encrypt it first: ansible-vault encrypt {path}")
    try:
        return vault.decrypt(data).decode("utf-8")
    except ValueError as error:
        raise PlanError(f"{path}: {error}", fix="give the file of the right password: --vault-password-file") from error


def add_secrets(path: Path, options: Sequence[Option], vault: Vault) -> tuple[str, ...]:
    """Add a generated value for each variable to a Vault file, which is made where it is missing; return the names that were added.

    What stands in the file stays as it is, comments included.

    Raises:
        PlanError: a value cannot be generated, or the file cannot be opened or written.
    """
    if odd := [option.name for option in options if option.type != "str"]:
        raise PlanError(
            f"no value can be generated for {', '.join(odd)}: only text can", fix=f"write it yourself: ansible-vault edit {path}"
        )
    before = read_vault_file(path, vault)
    there = yaml.safe_load(before) or {}
    added = [option for option in options if option.name not in there]
    if not added:
        return ()
    text = before or _HEAD
    for option in added:
        meaning = " ".join(option.description).partition(". ")[0]
        text += f"{'' if text.endswith(chr(10)) else chr(10)}# {meaning}\n{option.name}: {secrets.token_urlsafe(_BYTES)}\n"
    _write_sealed(path, text, vault)
    return tuple(option.name for option in added)


def _write_sealed(path: Path, text: str, vault: Vault) -> None:
    """Replace the file at once, so that a crash leaves the old one or the new one."""
    from ansible.parsing.vault import VaultLib  # noqa: PLC0415 - Ansible is loaded only where an inventory is

    sealed = VaultLib(list(vault.secrets)).encrypt(text, secret=vault.secrets[0][1])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, sealed, mode=0o600)
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", fix="name another place with --output") from error
