"""Find the name of the interface that carries the cluster's traffic, from the kernel's routing table in /proc/net."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass

from primus_bootstrap.launch.detect import sysfs

_UP, _REJECT = 0x1, 0x200


@dataclass(frozen=True)
class Route:
    """One usable IPv4 or IPv6 route. `metric` is compared only between routes of the same prefix."""

    device: str
    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    metric: int


@dataclass(frozen=True)
class Interface:
    """The chosen interface, or an empty name, and the reason."""

    name: str
    reason: str


def read_routes(host: sysfs.Host) -> tuple[Route, ...]:
    """Return the usable routes of the main table. Lines in an unknown format are ignored."""
    ipv4 = (_ipv4(line.split()) for line in _lines(host, "route")[1:])
    ipv6 = (_ipv6(line.split()) for line in _lines(host, "ipv6_route"))
    return tuple(route for route in (*ipv4, *ipv6) if route is not None)


def choose_interface(host: sysfs.Host, *, name: str = "", peer: str = "") -> Interface:
    """Choose the interface for rendezvous and socket traffic.

    Args:
        name: An interface set by the site; it must exist on the host.
        peer: An address in the cluster; its route is used instead of the default route.
    """
    if name:
        if name in sysfs.names_in(host.path("sys", "class", "net")):
            return Interface(name, "set by the site")
        return Interface("", f"the site sets {name}, which does not exist on this host")
    routes = read_routes(host)
    if peer:
        address = ipaddress.ip_address(peer)
        fitting = [route for route in routes if address in route.network]
        return _best(fitting, f"the route to {peer}")
    for version in (4, 6):
        defaults = [route for route in routes if route.network.version == version and route.network.prefixlen == 0]
        if defaults:
            return _best(defaults, "the default route" if version == 4 else "the IPv6 default route")
    return Interface("", "no default route")


def lower_devices(host: sysfs.Host, device: str) -> frozenset[str]:
    """Return an interface and its lower devices: the ports of a bond, the parent of a VLAN."""
    found: set[str] = set()
    queue = [device] if device else []
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        entries = sysfs.names_in(host.path("sys", "class", "net", name))
        queue.extend(entry[len("lower_") :] for entry in entries if entry.startswith("lower_"))
    return frozenset(found)


def _best(routes: list[Route], what: str) -> Interface:
    """Choose by the longest prefix, then the lowest metric. If two devices tie, choose none."""
    if not routes:
        return Interface("", f"no {what.removeprefix('the ')}")
    longest = max(route.network.prefixlen for route in routes)
    candidates = [route for route in routes if route.network.prefixlen == longest]
    lowest = min(route.metric for route in candidates)
    devices = sorted({route.device for route in candidates if route.metric == lowest})
    if len(devices) > 1:
        return Interface("", f"{what} exists on {' and '.join(devices)} with the same metric")
    return Interface(devices[0], f"carries {what}")


def _lines(host: sysfs.Host, name: str) -> list[str]:
    try:
        return host.path("proc", "net", name).read_text("ascii", "replace").splitlines()
    except OSError:
        return []


def _ipv4(fields: list[str]) -> Route | None:
    """Read a line of /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask ..., addresses in host byte order."""
    try:
        device, destination, flags, metric, mask = fields[0], fields[1], int(fields[3], 16), int(fields[6]), fields[7]
        network = ipaddress.IPv4Network(f"{_address(destination)}/{_address(mask)}", strict=False)
    except (IndexError, ValueError, struct.error):
        return None
    return Route(device, network, metric) if flags & _UP and not flags & _REJECT else None


def _address(text: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(text, 16)))


def _ipv6(fields: list[str]) -> Route | None:
    """Read a line of /proc/net/ipv6_route: destination prefix source prefix gateway metric refcnt use flags device, all hexadecimal."""
    try:
        network = ipaddress.IPv6Network((bytes.fromhex(fields[0]), int(fields[1], 16)), strict=False)
        metric, flags, device = int(fields[5], 16), int(fields[8], 16), fields[9]
    except (IndexError, ValueError):
        return None
    usable = flags & _UP and not flags & _REJECT and device != "lo"
    return Route(device, network, metric) if usable else None
