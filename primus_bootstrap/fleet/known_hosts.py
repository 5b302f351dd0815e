"""A known_hosts file cut into what each host needs: paramiko compares every line with every host, which 12,500 hosts feel."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """Lines by the name that they begin with, and those that may mean any host (hashed names)."""

    by_name: Mapping[str, Sequence[str]]
    for_all: Sequence[str]

    def lines_for(self, name: str) -> str:
        """Return what a known_hosts file for this one host holds."""
        return "".join(f"{line}\n" for line in (*self.by_name.get(name, ()), *self.for_all))


def host_key_name(host: str, port: int) -> str:
    """Return the name under which OpenSSH keeps a host's key."""
    return host if port == 22 else f"[{host}]:{port}"


def split_known_hosts(text: str) -> KnownHosts:
    """Read known_hosts(5); lines with a marker (`@revoked`, `@cert-authority`) are left out, since paramiko knows neither."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for_all: list[str] = []
    for line in text.splitlines():
        names, _, key = line.strip().partition(" ")
        if not key or names[0] in "#@":
            continue
        if names.startswith("|"):
            for_all.append(line)
            continue
        for name in names.split(","):
            by_name[name].append(f"{name} {key}")
    return KnownHosts(by_name, for_all)
