"""Decrypt values and files with the Vault password."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class Vault:
    """The Vault passwords of one run; empty if none was given. It has no repr, so that no log shows a password."""

    secrets: tuple[tuple[str, Any], ...] = ()

    def __bool__(self) -> bool:
        """Return whether a password was given."""
        return bool(self.secrets)

    def decrypt(self, data: bytes | str) -> bytes:
        """Return the plain content of `ansible-vault` ciphertext.

        Raises:
            ValueError: The password is wrong, or the ciphertext is damaged.
        """
        from ansible.errors import AnsibleError  # noqa: PLC0415 - Ansible is loaded only where an inventory is
        from ansible.parsing.vault import VaultLib  # noqa: PLC0415

        try:
            return bytes(VaultLib(list(self.secrets)).decrypt(data.encode() if isinstance(data, str) else data))
        except AnsibleError as error:
            if "no vault secrets were found" in str(error):
                raise ValueError("the Vault password is wrong") from error
            raise ValueError("the Vault data is damaged") from error

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make the passwords available to Ansible's template engine, which reads them from a process-wide context."""
        from ansible.parsing.vault import VaultSecretsContext  # noqa: PLC0415

        before = VaultSecretsContext._current  # noqa: SLF001 - initialize() works only once a process
        VaultSecretsContext._current = VaultSecretsContext(list(self.secrets))  # noqa: SLF001
        try:
            yield
        finally:
            VaultSecretsContext._current = before  # noqa: SLF001


def open_vault(loader: Any, *, password_file: Path | None, password: str | None) -> Vault:
    """Return the Vault passwords; without arguments, the one that `ANSIBLE_VAULT_PASSWORD_FILE` names.

    Raises:
        InventoryError: The password file is missing or empty, or its script fails.
    """
    from ansible import constants  # noqa: PLC0415
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.parsing.vault import VaultSecret, get_file_vault_secret  # noqa: PLC0415

    if password is not None:
        return Vault((("default", VaultSecret(password.encode())),))
    filename = str(password_file) if password_file else constants.DEFAULT_VAULT_PASSWORD_FILE
    if not filename:
        return Vault()
    try:
        secret = get_file_vault_secret(filename=filename, vault_id="default", encoding="utf8", loader=loader)
        secret.load()
    except AnsibleError as error:
        what = f"contains no Vault password: {str(error).splitlines()[0]}"
        fix = "--vault-password-file FILE: a file that contains the password, or a script that prints it"
        raise InventoryError([Problem(filename, 0, what, fix, "vault-password")]) from error
    return Vault((("default", secret),))
