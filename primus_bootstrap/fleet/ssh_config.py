"""Determine the route to a host from OpenSSH's configuration with `ssh -G`."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from primus_bootstrap.fleet.messages import Target

# A configuration without these keywords does not change the route to a host.
_MATTERS = re.compile(
    r"^\s*(Host|Match|Include|HostName|User|Port|IdentityFile|IdentitiesOnly|ProxyJump|ProxyCommand|HostKeyAlias|IdentityAgent)\b",
    re.MULTILINE | re.IGNORECASE,
)

_TIMEOUT_S = 20  # `ssh -G` contacts no host, but its configuration may run programs (`Match exec`)


@dataclass(frozen=True, slots=True)
class Route:
    """The route to one host. `proxy_command` is empty for a direct connection."""

    address: str
    port: int
    user: str
    key_files: tuple[str, ...]
    key_name: str
    identities_only: bool = False
    proxy_command: str = ""


@cache
def configuration_matters() -> bool:
    """Return whether the user's or the machine's ssh configuration may change the route to a host."""
    files = [Path.home() / ".ssh/config", *Path("/etc/ssh/ssh_config.d").glob("*.conf")]
    system = Path("/etc/ssh/ssh_config")
    system_text = _without_default_lines(system.read_text(encoding="utf-8", errors="replace")) if system.is_file() else ""
    texts = [system_text, *(file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())]
    return any(_MATTERS.search(text) for text in texts)


def _without_default_lines(text: str) -> str:
    """Remove the two lines of every distribution's default file, which set nothing."""
    return re.sub(r"^\s*(Include /etc/ssh/ssh_config\.d/\*\.conf|Host \*)\s*$", "", text, flags=re.MULTILINE)


def ssh_words(target: Target) -> list[str]:
    """Return the ssh arguments of a host in hosts.yaml."""
    words = list(target.ssh_arguments)
    words += ["-p", str(target.port)] if target.port != 22 else []
    words += ["-l", target.user] if target.user else []
    words += ["-i", target.key_file] if target.key_file else []
    return words


def route_of(target: Target) -> Route:
    """Return the route to a host. ssh runs only if its configuration or the host's arguments may change the route.

    Raises:
        ValueError: ssh rejects its configuration or the arguments, or exceeds the time limit.
    """
    if not target.ssh_arguments and not configuration_matters():
        keys = (os.path.expanduser(target.key_file),) if target.key_file else ()  # noqa: PTH111 (paramiko wants text)
        return Route(target.address, target.port, target.user, keys, target.address)
    try:
        done = run_command(["ssh", "-G", *ssh_words(target), "--", target.address], timeout_s=_TIMEOUT_S)
    except TimeoutError as error:
        hint = "a `Match exec` in ~/.ssh/config or /etc/ssh/ssh_config may hang"
        raise ValueError(f"`ssh -G {target.address}` did not end within {_TIMEOUT_S} s: {hint}") from error
    if done.code != 0:
        raise ValueError(done.stderr.strip() or f"`ssh -G` failed with exit code {done.code}")
    return parse_route(target, done.stdout)


def parse_route(target: Target, text: str) -> Route:
    """Parse the output of `ssh -G`."""
    pairs = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    values = dict(pairs)
    address, port, user = values["hostname"], int(values.get("port", 22)), values.get("user", "")
    keys = (target.key_file,) if target.key_file else tuple(value for name, value in pairs if name == "identityfile")
    return Route(
        address=address,
        port=port,
        user=user,
        key_files=tuple(path for path in map(os.path.expanduser, keys) if target.key_file or Path(path).is_file()),
        key_name=values.get("hostkeyalias", address),
        identities_only=values.get("identitiesonly") == "yes",
        proxy_command=proxy_command(values, address, port, user, target),
    )


def proxy_command(values: Mapping[str, str], address: str, port: int, user: str, target: Target) -> str:
    """Return the command whose stdin and stdout are the connection, or an empty string for a direct connection."""
    command = values.get("proxycommand", "none")
    if command != "none":
        tokens = {"%%": "%", "%h": address, "%p": str(port), "%r": user, "%n": target.address}
        return re.sub("%[%hprn]", lambda match: tokens[match.group()], command)
    jumps = values.get("proxyjump", "none")
    if jumps == "none":
        return ""
    *first, last = jumps.split(",")
    words = ["ssh", "-o", "BatchMode=yes", *configuration_file(target.ssh_arguments)]
    words += ["-J", ",".join(first)] if first else []
    return shlex.join([*words, "-W", f"[{address}]:{port}", "--", last if "://" in last else f"ssh://{last}"])


def configuration_file(words: Sequence[str]) -> list[str]:
    """Return the `-F FILE` of ssh's arguments, the only argument that OpenSSH passes on to jump hosts."""
    found: Iterable[int] = (index for index, word in enumerate(words) if word == "-F" and index + 1 < len(words))
    return next((list(words[index : index + 2]) for index in found), [])
