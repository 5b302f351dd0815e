"""Check the text of one address: each function returns what is wrong and the fix, or None."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from primus_bootstrap.inventory.ansible.addresses import looks_like_address, parse_address

if TYPE_CHECKING:
    from primus_bootstrap.inventory.ansible.addresses import IpAddress

# A DNS name or the alias of an SSH configuration, or an IPv6 address with a zone.
_REACHABLE_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?|[0-9A-Fa-f:.]+%[A-Za-z0-9._-]+")
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_OWN_ADDRESS = "set the host's address on the cluster's network"


def bad_ip(variable: str, text: str) -> tuple[str, str] | None:
    """Check the address that the other hosts use: `ip`, `access_ip`, `ip6` or `access_ip6`."""
    address = parse_address(text)
    version = 6 if variable.endswith("6") else 4
    if address is None:
        return (f"{variable}: `{text}` is not an IP address", _address_fix(text))
    if version == 6 and address.version == 4:
        return (f"{variable}: `{text}` is an IPv4 address", f"set {variable.removesuffix('6')} instead")
    if _is_no_host(address) or address.is_loopback or address.is_link_local:
        return (f"{variable}: other hosts cannot reach `{text}`", _OWN_ADDRESS)
    return None


def bad_ansible_host(variable: str, text: str) -> tuple[str, str] | None:
    """Check the address or name that the controller connects to. A loopback address is allowed: the port may be forwarded."""
    if address := parse_address(text):
        return _bad_address(variable, text, address)
    if looks_like_address(text):
        return (f"{variable}: `{text}` is not a valid IP address", _address_fix(text))
    if _REACHABLE_NAME.fullmatch(text):
        return None
    fix = f"write {re.sub(r'[.]+', '.', text)}" if ".." in text else _address_fix(text)
    return (f"{variable}: `{text}` is neither an IP address nor a host name", fix)


def _bad_address(variable: str, text: str, address: IpAddress) -> tuple[str, str] | None:
    if _is_no_host(address):
        return (f"{variable}: `{text}` is not the address of one host", _OWN_ADDRESS)
    if isinstance(address, ipaddress.IPv6Address) and address.is_link_local and not address.scope_id:
        fix = f"write {text}%eth0, with the controller's interface in place of eth0"
        return (f"{variable}: `{text}` is a link-local address without its interface", fix)
    return None


def _is_no_host(address: IpAddress) -> bool:
    """Return whether an address never belongs to one host: RFC 1112, RFC 919 section 7, RFC 4291 section 2.5.2."""
    return address.is_unspecified or address.is_multicast or address == _BROADCAST


def _address_fix(text: str) -> str:
    if text.startswith("[") and parse_address(text.strip("[]")):
        return f"write it without brackets: {text.strip('[]')}"
    if "[" in text:
        return "a range is allowed in the name of a host only; set an address for each host"
    if "/" in text and parse_address(text.partition("/")[0]):
        return f"write it without the prefix length: {text.partition('/')[0]}"
    if text.count(":") == 1 and parse_address(text.partition(":")[0]):
        return f"write {text.partition(':')[0]}, and set ansible_port: {text.partition(':')[2]}"
    parts = text.split(".")
    if len(parts) == 4 and all(part.isdigit() for part in parts):
        plain = ".".join(str(int(part)) for part in parts)
        return f"write {plain}" if parse_address(plain) else "use numbers from 0 to 255"
    return "write an address such as 10.0.0.1"
