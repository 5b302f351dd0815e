# ruff: noqa: INP001 (Ansible loads it by path)
"""Compute the rules of a host's packet filter from the inventory. Only pure functions; `validate` uses them too."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Variables of a host that can have an address from which it connects. A host can also be named by its address.
ADDRESS_VARIABLES = ("ip", "ip6", "access_ip", "access_ip6", "ansible_host", "inventory_hostname")
ANYWHERE, ADMINISTRATORS = "anywhere", "administrators"
# A set is named after its rule. nft's names have at most 127 characters, begin with a letter, and have no dashes in older releases.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# The kernel's names of interfaces have at most 15 characters.
_INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}\*?")
_LAST_PORT, _LAST_RESERVED_PORT = 65535, 1023


def packet_filter_addresses(hostvars: Any, hosts: Iterable[str]) -> dict[str, list[str]]:
    """Return the addresses and networks from which each host connects; reads the variables of each host once."""
    return {host: host_addresses(hostvars[host]) for host in hosts}


def host_addresses(variables: Mapping[str, Any]) -> list[str]:
    """Return the addresses of one host, those by which others connect to it first. Names and loopback addresses are left out."""
    stated = [variables.get(name) for name in ADDRESS_VARIABLES]
    known = [str(value) for value in stated if value and (network := _network(value)) and not network.is_loopback]
    return list(dict.fromkeys([*known, *(str(value) for value in variables.get("packet_filter_addresses") or ())]))


def packet_filter_rules(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a host accepts: one rule for each service that listens on it and has clients.

    Args:
        given: `services` (also the extra rules), `group_names` of the host, and `groups`, `addresses` and `administrators` of the cluster.
    """
    return [rule for service in _services_here(given) if (rule := _rule(service, given))]


def packet_filter_problems(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each problem of the values and of the addresses as (what, fix)."""
    return value_problems(given) + [(what, fix) for _, what, fix in address_problems(given["addresses"])]


def value_problems(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each problem of a host's rules, sources and interfaces as (what, fix)."""
    services = _services_here(given)
    problems = [problem for service in services for problem in _service_problems(service, given)]
    names = [service["name"] for service in services]
    problems += [
        (f"packet_filter_extra_rules: the name {name} is taken by another rule", "use another name")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    problems += [
        (f"packet_filter_admin_sources: {one} is neither an address nor a network", "use the form 10.0.0.7 or 10.0.0.0/16")
        for one in given["administrators"]
        if _network(one) is None
    ]
    return problems + [
        (f"packet_filter_trusted_interfaces: {one} is not the name of an interface", "use a name of `ip link`, or its beginning and *")
        for one in given["interfaces"]
        if not _INTERFACE.fullmatch(one)
    ]


def address_problems(addresses: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
    """Return each problem of the hosts' addresses as (host, what, fix); the host is empty if it concerns several."""
    wrong = [(host, one) for host, values in addresses.items() for one in values if _network(one) is None]
    problems = [
        (host, f"packet_filter_addresses: {one} of {host} is neither an address nor a network", "use the form 10.0.0.7 or 10.0.0.0/16")
        for host, one in wrong
    ]
    without = [host for host, values in addresses.items() if not values]
    if without:
        shown = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        problems.append(("", f"no IP address is known of {shown}, so the packet filters of other hosts would reject it", "set `ip`"))
    return problems


def packet_filter_closed_port(rules: Sequence[Mapping[str, Any]]) -> int:
    """Return a port below 1024 that no rule accepts; 0 if there is none."""
    ranges = [_port_range(port) for rule in rules for port in rule["ports"]]
    free = (port for port in range(_LAST_RESERVED_PORT, 0, -1) if not any(first <= port <= last for first, last in ranges))
    return next(free, 0)


def packet_filter_next(host: str, hosts: Sequence[str]) -> str:
    """Return the host after this one, the first one after the last; empty if there is no other."""
    others = [*hosts[hosts.index(host) + 1 :], *hosts] if host in hosts else list(hosts)
    return next((one for one in others if one != host), "")


def _services_here(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    here = set(given["group_names"])
    return [service for service in given["services"] if here.intersection(service["groups"])]


def _rule(service: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rule of a service; None if none of its clients is in the cluster."""
    anywhere = ANYWHERE in service["sources"]
    networks = [] if anywhere else [_network(address) for source in service["sources"] for address in _resolve(source, given) or ()]
    sources = {f"ipv{version}": _merged(networks, version) for version in (4, 6)}
    ports = sorted({str(port) for port in service["ports"]}, key=_port_range)
    if not ports or not (anywhere or any(sources.values())):
        return None
    protocols = list(service.get("protocols") or ["tcp"])
    return {"name": service["name"], "ports": ports, "protocols": protocols, "anywhere": anywhere, "sources": sources}


def _merged(networks: Iterable[Any], version: int) -> list[str]:
    """Return the networks of one IP version, sorted and without those that others contain."""
    mine = [one for one in networks if one is not None and one.version == version]
    return [str(one.network_address if one.num_addresses == 1 else one) for one in ipaddress.collapse_addresses(mine)]


def _resolve(source: str, given: Mapping[str, Any]) -> list[str] | None:
    """Return the addresses of a source; None if it is neither an address nor a name of hosts.yaml."""
    if source == ADMINISTRATORS:
        return list(given["administrators"])
    if source in given["addresses"]:
        return list(given["addresses"][source])
    if source in given["groups"]:
        return [address for host in given["groups"][source] for address in given["addresses"].get(host, ())]
    return [source] if _network(source) else None


def _service_problems(service: Mapping[str, Any], given: Mapping[str, Any]) -> list[tuple[str, str]]:
    name = str(service["name"])
    where = "packet_filter_ssh_sources" if name == "ssh" else f"packet_filter_extra_rules: the rule {name}"
    if not _NAME.fullmatch(name):
        return [(f"{where} has a name that nftables does not accept", "use lower-case letters, digits and _, and a letter first")]
    problems = [
        (f"{where} has the port {port}", "use 1 to 65535, or a range such as 30000-30100")
        for port in service["ports"]
        if _port_range(port) == (0, 0)
    ]
    # Ansible does not know the groups of the cluster's services that hosts.yaml leaves out.
    stated = service["sources"] if service.get("stated") else ()
    unknown = [one for one in stated if one != ANYWHERE and _resolve(one, given) is None]
    return problems + [
        (f"{where} has the source {one}, which is no address, network, host or group", "correct it; a name must be in hosts.yaml")
        for one in unknown
    ]


def _network(value: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return an address or network; None if the value is neither."""
    try:
        return ipaddress.ip_network(str(value), strict=False)
    except ValueError:
        return None


def _port_range(port: Any) -> tuple[int, int]:
    """Return the first and the last port of a range; zeros if it is not valid."""
    first, dash, last = str(port).partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        return 0, 0
    numbers = int(first), int(last or first)
    return numbers if 0 < numbers[0] <= numbers[1] <= _LAST_PORT else (0, 0)


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        names = ("addresses", "rules", "problems", "closed_port", "next")
        return {f"packet_filter_{name}": globals()[f"packet_filter_{name}"] for name in names}
