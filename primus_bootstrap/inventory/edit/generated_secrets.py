"""Generate secrets and write them, encrypted, to a Vault file."""

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

_BYTES = 32  # 43 characters, none of which needs quotes in shells, URLs or INI files
_HEAD = "# Written by primus-bootstrap secrets init. To view or change it: ansible-vault edit\n"


def missing_secrets(problems: Iterable[Problem]) -> tuple[Option, ...]:
    """Return the secrets that the problems of the rule `required` name.

    The message of such a problem begins with the name of the variable.
    """
    names = {_variable(problem) for problem in problems if problem.rule == "required"}
    return tuple(option for option in load_options().values() if option.no_log and option.name in names)


def only_missing_secrets(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return the names of the missing secrets if nothing else is wrong and each can be generated; otherwise nothing."""
    names = tuple(dict.fromkeys(_variable(problem) for problem in problems if problem.rule == "required"))
    generated = {option.name for option in missing_secrets(problems) if option.type == "str"}
    only = all(problem.rule == "required" for problem in problems) and generated == set(names)
    return names if only else ()


def _variable(problem: Problem) -> str:
    return problem.what.partition(" ")[0]


def password_of(path: Path) -> Vault:
    """Return the Vault with the password in a file, or from the output of a script.

    Raises:
        InventoryError: The file contains no password.
    """
    view.use_shipped_settings()
    return open_vault(view.make_loader(), password_file=path, password=None)


def create_password_file(path: Path, *, is_state_folder: bool = False) -> None:
    """Write a new Vault password to a file with mode 0600.

    If the folder is new, or is the cluster's state folder (`is_state_folder`), a `.gitignore` for all files is added to it.

    Raises:
        PlanError: The file exists, or cannot be written.
    """
    try:
        if is_state_folder or not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"{secrets.token_urlsafe(_BYTES)}\n")
    except OSError as error:
        fix = "choose a path that you can write to: --vault-password-file FILE"
        raise PlanError(f"{path} cannot be written: {error.strerror}", fix=fix) from error


def read_vault_file(path: Path, vault: Vault) -> str:
    """Return the plain text of a Vault file; empty if it does not exist.

    Raises:
        PlanError: The file is not encrypted, or the password is wrong.
    """
    if not path.exists():
        return ""
    data = path.read_bytes()
    if not data.startswith(b"$ANSIBLE_VAULT;"):
        raise PlanError(f"{path} is not encrypted", fix=f"ansible-vault encrypt {path}")
    try:
        return vault.decrypt(data).decode("utf-8")
    except ValueError as error:
        raise PlanError(f"{path}: {error}", fix="--vault-password-file FILE, with the right password") from error


def add_secrets(path: Path, options: Sequence[Option], vault: Vault) -> tuple[str, ...]:
    """Add a generated value for each variable to a Vault file; return the names that were added.

    Creates the file if it does not exist. The existing content, comments included, is kept.

    Raises:
        PlanError: A value cannot be generated, or the file cannot be read or written.
    """
    if odd := [option.name for option in options if option.type != "str"]:
        raise PlanError(f"cannot generate a value for {', '.join(odd)}: not a string", fix=f"add it yourself: ansible-vault edit {path}")
    before = read_vault_file(path, vault)
    existing = yaml.safe_load(before) or {}
    added = [option for option in options if option.name not in existing]
    if not added:
        return ()
    text = before or _HEAD
    for option in added:
        meaning = " ".join(option.description).partition(". ")[0]
        text += f"{'' if text.endswith(chr(10)) else chr(10)}# {meaning}\n{option.name}: {secrets.token_urlsafe(_BYTES)}\n"
    _write_encrypted(path, text, vault)
    return tuple(option.name for option in added)


def _write_encrypted(path: Path, text: str, vault: Vault) -> None:
    from ansible.parsing.vault import VaultLib  # noqa: PLC0415 - Ansible takes 0.2 s to import

    encrypted = VaultLib(list(vault.secrets)).encrypt(text, secret=vault.secrets[0][1])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, encrypted, mode=0o600)
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}", fix="choose another path: --output FILE") from error
