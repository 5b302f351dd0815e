"""Choose the RDMA ports for training traffic from /sys/class/infiniband, with a reason for each port.

A port is chosen if all of these hold, in this order:

1. The site does not deny it.
2. It works: ACTIVE, LinkUp, known link layer, readable rate. It is not a virtual function of a device on this host.
3. It does not carry the cluster's route, unless all ports do.
4. It has an address that other hosts can route to, unless no port has one (RoCE).
5. It is in the fastest group.
6. It shares a PCIe switch with a GPU, on hosts built with compute ports near the GPUs.

If two groups tie, no port is chosen, because a wrong fabric is worse than NCCL's own search.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.detect.nic_families import family_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.detect.gpus import Gpu

IB, ROCE, NO_FABRIC = "ib", "roce", "none"
_KINDS = {"InfiniBand": IB, "Ethernet": ROCE}
_GIDS = 256  # upper limit of GID table entries to read; the known NICs have at most this many


@dataclass(frozen=True)
class Port:
    """One port of one RDMA device."""

    device: str
    number: int
    state: str
    physical_state: str
    kind: str
    rate_gbit_per_s: float | None  # None if sysfs contains no number
    netdevs: tuple[str, ...]
    pci_address: str
    numa_node: int | None
    gid_index: int | None  # the RoCE v2 entry with an IPv4 address, or None
    path: tuple[str, ...] = ()
    link_local: bool = False  # RoCE: every address of the port is link-local (169.254.0.0/16, fe80::/10)
    family: str = ""  # of the card, as in data/nics.yml; empty if it is not listed there
    physical_function: str = ""  # the PCI address of the physical function on this host, for a virtual function
    chosen: bool | None = None  # None until `choose_ports` has decided; `reason` then explains the decision
    denied: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Device and port in the notation of NCCL_IB_HCA."""
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Fabric:
    """The result of `choose_ports`. `reason` explains why no port was chosen."""

    kind: str
    ports: tuple[Port, ...]
    reason: str = ""

    @property
    def chosen(self) -> tuple[Port, ...]:
        """The ports that training traffic uses."""
        return tuple(port for port in self.ports if port.chosen)

    @property
    def hca_list(self) -> str:
        """The value of NCCL_IB_HCA. If no port was chosen, it excludes the denied ports, or is empty."""
        if self.chosen:
            return "=" + ",".join(port.name for port in self.chosen)
        denied = [port.name for port in self.ports if port.denied]
        return "^=" + ",".join(denied) if denied else ""

    @property
    def family(self) -> str:
        """The family of network cards that all chosen ports share, such as `ainic`; empty for any other card."""
        families = {port.family for port in self.chosen}
        return families.pop() if len(families) == 1 else ""

    @property
    def gid_index(self) -> int | None:
        """The RoCE v2 GID index that all chosen ports share, or None."""
        indices = {port.gid_index for port in self.chosen}
        return indices.pop() if self.kind == ROCE and len(indices) == 1 else None


def read_ports(host: sysfs.Host) -> tuple[Port, ...]:
    """Return every port of every RDMA device, in natural order of their names."""
    devices = host.path("sys", "class", "infiniband")
    return tuple(
        _read_port(devices / device, int(number))
        for device in sorted(sysfs.names_in(devices), key=natural)
        for number in sorted(sysfs.names_in(devices / device / "ports"), key=natural)
        if number.isdecimal()
    )


def choose_ports(ports: Sequence[Port], gpus: Sequence[Gpu], *, deny: Sequence[str] = (), route_devices: Iterable[str] = ()) -> Fabric:
    """Choose the ports for training traffic.

    Args:
        deny: Shell patterns of devices, ports (`mlx5_0:1`), interfaces or PCI addresses that are for storage or management.
        route_devices: The interface of the cluster's route and its lower devices.
    """
    if not ports:
        return Fabric(NO_FABRIC, (), "no RDMA device")
    on_route = frozenset(route_devices)
    checked = [_check_port(port, deny) for port in ports]
    checked = _reject(checked, lambda port: bool(on_route & set(port.netdevs)), "carries the cluster's route, and other ports are free")
    checked = _reject(checked, lambda port: port.link_local, "has only link-local addresses, and other ports have an address")
    checked, reason = _keep_fastest(checked)
    checked = _keep_near(checked, gpus)
    chosen = [port for port in checked if port.chosen]
    if not chosen:
        return Fabric(NO_FABRIC, tuple(checked), reason or "no RDMA port is usable: " + _summary(checked))
    rate = chosen[0].rate_gbit_per_s
    final = [replace(port, reason=f"fastest group ({rate:g} Gbit/s {port.kind})") if port.chosen else port for port in checked]
    return Fabric(chosen[0].kind, tuple(final))


def near_ports(gpu: Gpu, ports: Sequence[Port]) -> tuple[tuple[str, ...], str]:
    """Return the ports nearest to a GPU and the criterion: pcie (same PCIe switch), numa, or none."""
    depths = {port.name: _shared_bridges(gpu.path, port.path) for port in ports}
    deepest = max(depths.values(), default=0)
    if deepest:
        return tuple(name for name, depth in depths.items() if depth == deepest), "pcie"
    same = tuple(port.name for port in ports if port.numa_node is not None and port.numa_node == gpu.numa_node)
    return same, "numa" if same else "none"


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that sorts mlx5_2 before mlx5_10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


def _check_port(port: Port, deny: Sequence[str]) -> Port:
    """Check whether the site denies a port and whether it works."""
    names = (port.device, port.name, port.pci_address, *port.netdevs)
    for pattern in deny:
        if any(fnmatchcase(name, pattern) for name in names if name):
            return replace(port, chosen=False, denied=True, reason=f"denied by the site ({pattern})")
    problem = _problem(port)
    return replace(port, chosen=not problem, reason=problem)


def _problem(port: Port) -> str:
    """Return why a port cannot carry traffic, or an empty string."""
    if port.state != "ACTIVE":
        return f"its state is {port.state or 'unreadable'}, not ACTIVE"
    if port.physical_state != "LinkUp":
        return f"its physical state is {port.physical_state or 'unreadable'}, not LinkUp"
    if port.physical_function:
        return f"a virtual function of {port.physical_function}, which is on this host"
    if not port.kind:
        return "its link layer is neither InfiniBand nor Ethernet"
    return "its rate cannot be read" if port.rate_gbit_per_s is None else ""


def _reject(ports: list[Port], unwanted: Callable[[Port], bool], reason: str) -> list[Port]:
    """Reject the unwanted ports, unless all chosen ports are unwanted."""
    chosen = [port for port in ports if port.chosen]
    if all(unwanted(port) for port in chosen):
        return ports
    return [replace(port, chosen=False, reason=reason) if port.chosen and unwanted(port) else port for port in ports]


def _keep_fastest(ports: list[Port]) -> tuple[list[Port], str]:
    """Keep the fastest group of one link layer. Of two equally fast groups, keep the larger one; if they are equal, keep none."""
    groups: dict[tuple[float, str], int] = {}
    for port in ports:
        if port.chosen:
            key = (port.rate_gbit_per_s or 0.0, port.kind)
            groups[key] = groups.get(key, 0) + 1
    if not groups:
        return ports, ""
    best = max((rate, count) for (rate, _), count in groups.items())
    winners = [key for key, count in groups.items() if (key[0], count) == best]
    if len(winners) > 1:
        reason = f"InfiniBand and Ethernet have {best[1]} ports of {best[0]:g} Gbit/s each; deny one of them"
        return [replace(port, chosen=False, reason=reason) if port.chosen else port for port in ports], reason
    rate, kind = winners[0]
    reason = f"not in the fastest group ({rate:g} Gbit/s {kind}, {best[1]} ports)"
    return _reject(ports, lambda port: (port.rate_gbit_per_s, port.kind) != (rate, kind), reason), ""


def _keep_near(ports: list[Port], gpus: Sequence[Gpu]) -> list[Port]:
    """Reject ports that share no PCIe switch with a GPU, on a host built with ports near its GPUs.

    A host counts as such if at least half of its GPUs share a PCIe switch with a port. Ports that are down count too, so that a storage
    port does not replace a compute port that is down.
    """
    served = sum(any(_shared_bridges(gpu.path, port.path) for port in ports) for gpu in gpus)
    if not served or 2 * served < len(gpus):
        return ports
    near = {port.name for port in ports if any(_shared_bridges(gpu.path, port.path) for gpu in gpus)}
    return _reject(ports, lambda port: port.name not in near, "not behind a PCIe switch of a GPU, unlike this host's compute ports")


def _shared_bridges(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return the number of PCIe bridges below the host bridge that two devices share."""
    shared = 0
    for left, right in zip(one[:-1], other[:-1]):  # noqa: B905 - strict= needs Python 3.10
        if left != right:
            break
        shared += 1
    return max(shared - 1, 0)


def _summary(ports: Sequence[Port]) -> str:
    return "; ".join(f"{port.name}: {port.reason}" for port in ports)


def _read_port(device: Path, number: int) -> Port:
    path = device / "ports" / str(number)
    rate = re.match(r"\s*(\d+(?:\.\d+)?) Gb/sec", sysfs.read_text(path / "rate") or "")
    node = sysfs.read_int(device / "device" / "numa_node")
    layer = sysfs.read_text(path / "link_layer") or ""
    gids = _roce_addresses(path) if layer == "Ethernet" else {}
    return Port(
        device=device.name,
        number=number,
        state=_word(path / "state"),
        physical_state=_word(path / "phys_state"),
        kind=_KINDS.get(layer, ""),
        rate_gbit_per_s=float(rate.group(1)) if rate else None,
        netdevs=_netdevs(device, number),
        pci_address=sysfs.link_name(device / "device"),
        numa_node=node if node is not None and node >= 0 else None,
        gid_index=next((index for index, address in gids.items() if address.ipv4_mapped and not _is_link_local(address)), None),
        path=sysfs.device_path(device / "device"),
        link_local=bool(gids) and all(_is_link_local(address) for address in gids.values()),
        family=family_of(sysfs.read_text(device / "device" / "vendor") or "", sysfs.link_name(device / "device" / "driver")),
        physical_function=sysfs.link_name(device / "device" / "physfn"),
    )


def _word(path: Path) -> str:
    """Return the word of `4: ACTIVE`."""
    return (sysfs.read_text(path) or "").partition(":")[2].strip()


def _netdevs(device: Path, number: int) -> tuple[str, ...]:
    """Return the interfaces of one port: from its GIDs, else by dev_port, else all interfaces of the device."""
    attributes = device / "ports" / str(number) / "gid_attrs" / "ndevs"
    named = {sysfs.read_text(attributes / index) for index in sysfs.names_in(attributes)[:_GIDS]}
    found = tuple(sorted(name for name in named if name))
    if found:
        return found
    nets = sysfs.names_in(device / "device" / "net")
    matching = tuple(name for name in nets if sysfs.read_int(device / "device" / "net" / name / "dev_port") == number - 1)
    return matching or nets


def _roce_addresses(port: Path) -> dict[int, ipaddress.IPv6Address]:
    """Return the addresses of the RoCE v2 GIDs by index, in ascending order. An IPv4 address is mapped (::ffff:a.b.c.d)."""
    found: dict[int, ipaddress.IPv6Address] = {}
    indices = sorted(int(name) for name in sysfs.names_in(port / "gids") if name.isdecimal())
    for index in indices[:_GIDS]:
        if "v2" not in (sysfs.read_text(port / "gid_attrs" / "types" / str(index)) or ""):
            continue
        try:
            address = ipaddress.IPv6Address(sysfs.read_text(port / "gids" / str(index)) or "")
        except ValueError:
            continue
        if not address.is_unspecified:
            found[index] = address
    return found


def _is_link_local(address: ipaddress.IPv6Address) -> bool:
    return (address.ipv4_mapped or address).is_link_local
