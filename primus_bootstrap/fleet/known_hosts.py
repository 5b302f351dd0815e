"""Split a known_hosts file by host: paramiko compares every line with every host, which is slow for thousands of hosts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The lines by host name, and the lines with hashed names, which may apply to any host."""

    by_name: Mapping[str, Sequence[str]]
    for_all: Sequence[str]

    def lines_for(self, name: str) -> str:
        """Return the text of a known_hosts file for this host."""
        return "".join(f"{line}\n" for line in (*self.by_name.get(name, ()), *self.for_all))


def host_key_name(host: str, port: int) -> str:
    """Return the name of a host in OpenSSH's known_hosts."""
    return host if port == 22 else f"[{host}]:{port}"


def split_known_hosts(text: str) -> KnownHosts:
    """Parse known_hosts(5) without lines with a marker (`@revoked`, `@cert-authority`), which paramiko does not support."""
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
