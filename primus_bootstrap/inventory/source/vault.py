"""The Vault password and what it opens, through Ansible's own Vault."""

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
    """The secrets of one run; empty where no password was given. Has no repr: it holds passwords."""

    secrets: tuple[tuple[str, Any], ...] = ()

    def __bool__(self) -> bool:
        """Tell whether any password was given."""
        return bool(self.secrets)

    def decrypt(self, data: bytes | str) -> bytes:
        """Open what `ansible-vault` sealed.

        Raises:
            ValueError: no password opens it, or it is damaged.
        """
        from ansible.errors import AnsibleError  # noqa: PLC0415 - Ansible is loaded only where an inventory is
        from ansible.parsing.vault import VaultLib  # noqa: PLC0415

        try:
            return bytes(VaultLib(list(self.secrets)).decrypt(data.encode() if isinstance(data, str) else data))
        except AnsibleError as error:
            if "no vault secrets were found" in str(error):
                raise ValueError("the Vault password does not open it") from error
            raise ValueError("its Vault data is damaged") from error

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let Ansible's templates open inline Vault values: it looks for the password in one place of the whole process."""
        from ansible.parsing.vault import VaultSecretsContext  # noqa: PLC0415

        before = VaultSecretsContext._current  # noqa: SLF001 - initialize() works only once a process
        VaultSecretsContext._current = VaultSecretsContext(list(self.secrets))  # noqa: SLF001
        try:
            yield
        finally:
            VaultSecretsContext._current = before  # noqa: SLF001


def open_vault(loader: Any, *, password_file: Path | None, password: str | None) -> Vault:
    """Return the secrets that the user gave; Ansible's own setting (`ANSIBLE_VAULT_PASSWORD_FILE`) counts where nothing is given.

    Raises:
        InventoryError: the password file is missing, empty, or its script fails.
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
        what = f"gives no Vault password: {str(error).splitlines()[0]}"
        raise InventoryError(
            [Problem(filename, 0, what, "give a file that holds the password, or a script that prints it", "vault-password")]
        ) from error
    return Vault((("default", secret),))
