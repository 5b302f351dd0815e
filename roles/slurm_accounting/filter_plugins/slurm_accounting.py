# ruff: noqa: INP001 (Ansible loads it by path)
"""Hash the password of slurmdbd for MariaDB on the controller, so that no statement and no log of the server has the password."""

from __future__ import annotations

import hashlib
from typing import Any


def slurm_accounting_password_hash(password: str) -> str:
    """Return the hash of a password: https://mariadb.com/kb/en/authentication-plugin-mysql_native_password/."""
    inner = hashlib.sha1(password.encode()).digest()  # noqa: S324 - the format of the server
    return "*" + hashlib.sha1(inner).hexdigest().upper()  # noqa: S324


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"slurm_accounting_password_hash": slurm_accounting_password_hash}
