# ruff: noqa: INP001 (Ansible loads it by path)
"""A password as the web settings of Prometheus' programs want it: its bcrypt hash, made on the controller, so no host sees the password."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import bcrypt

# 2**10 rounds, the least that is still usual; each program remembers who it let in, so it costs nothing per request.
# https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
_COST = 10
# bcrypt writes 16 bytes as 22 characters of an alphabet of its own.
_STANDARD, _BCRYPT = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
)


def web_password_hash(password: str, where: str) -> str:
    """Return the bcrypt hash of a password for one place.

    The salt follows from the place, never from the password: it differs from host to host, tells nothing of the password, and the second
    run gives the same hash.
    """
    digest = hashlib.sha256(f"primus-bootstrap {where}".encode()).digest()[:16]
    salt = base64.b64encode(digest).decode().rstrip("=").translate(str.maketrans(_STANDARD, _BCRYPT))
    return bcrypt.hashpw(password.encode(), f"$2b${_COST}${salt}".encode()).decode()


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"web_password_hash": web_password_hash}
