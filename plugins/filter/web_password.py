# ruff: noqa: INP001 (Ansible loads it by path)
"""Hash passwords of services with bcrypt on the controller, so hosts get no password.

ansible.builtin.password_hash needs passlib, which is not maintained.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from ansible.errors import AnsibleFilterError

# 2**10 rounds, the lowest usual number. The programs cache accepted passwords, so requests cost no further hash.
# https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
_COST = 10
# bcrypt encodes 16 bytes as 22 characters with its own base64 alphabet.
_STANDARD, _BCRYPT = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
)


def web_password_hash(password: str, where: str, cost: int = _COST) -> str:
    """Return the bcrypt hash of a password for one service of one host.

    The salt is derived from `where`, never from the password. So it differs from host to host and reveals nothing about the password, and
    a second run returns the same hash.

    Raises:
        AnsibleFilterError: The package bcrypt is missing.
    """
    try:
        import bcrypt  # noqa: PLC0415 - where it is missing the error has a fix
    except ImportError as error:
        raise AnsibleFilterError(f"{error}. Fix: install bcrypt into the Python that runs ansible-playbook") from error
    digest = hashlib.sha256(f"primus-bootstrap {where}".encode()).digest()[:16]
    salt = base64.b64encode(digest).decode().rstrip("=").translate(str.maketrans(_STANDARD, _BCRYPT))
    return bcrypt.hashpw(password.encode(), f"$2b${cost:02d}${salt}".encode()).decode()


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"web_password_hash": web_password_hash}
