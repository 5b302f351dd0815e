# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Check that other hosts can reach a service of this host at the address on which it listens."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible.module_utils.verdict_records import Verdicts

# Addresses that stand for all addresses of a host.
EVERY = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared only


def foreign_problem(address: str, host: str) -> str:
    """Return a sentence if the address, or that of the name, belongs to another host. A name without an address of its own passes."""
    found = "" if address in EVERY else resolved_address(address)
    if not found or _is_loopback(found) or is_own(found):
        return ""
    name = f" ({address})" if found != address else ""
    return f"{found}{name} is not an address of {host}."


def listen_problem(address: str, host: str) -> str:
    """Return a sentence if a service that listens on the address cannot start, or no other host can reach it by this name."""
    if address in EVERY or _is_loopback(address) or address == "localhost":
        return ""
    found = resolved_address(address)
    if not found:
        return f"{host} cannot resolve {address}."
    if _is_loopback(found):
        return f"{address} is {found} on {host}, which other hosts cannot reach."
    return foreign_problem(address, host)


def listen_fix(host: str, variable: str) -> str:
    """Return what to change if there is a problem."""
    return f"set `ip` of {host} in hosts.yaml to one of its addresses (`ip -brief address` there lists them), or set {variable}"


def check_address(verdicts: Verdicts, address: str, host: str, variable: str) -> None:
    """Check that the address on which a service listens is one of this host's."""
    problem = listen_problem(address, host)
    verdict = "fail" if problem else "pass"
    fix = listen_fix(host, variable)
    verdicts.add("address", verdict, expected=f"an address of {host}", found=address, reason=problem.rstrip("."), fix=fix)


def resolved_address(name: str) -> str:
    """Return the address to which programs in Go bind a name: the first IPv4 address, else the first one; empty if there is none."""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return ""
    return next((one for one in found if ":" not in one), found[0])


def is_own(address: str) -> bool:
    """Return whether this host has the address; true if the kernel refuses the question for another reason."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
