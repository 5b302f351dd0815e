"""The RDMA ports that training traffic should use, from /sys/class/infiniband: each choice and each rejection has its reason.

Order of the sieve: the port works (ACTIVE, LinkUp, known link layer, readable rate); it is not denied by the site; it does not carry the
cluster's route while others are free; it is in the fastest group; it stands beside a GPU where the host is built so. What stays is
used. Where two groups have equal rights nothing is chosen: a wrong fabric is worse than NCCL's own search.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.detect.gpus import Gpu

IB, ROCE, NO_FABRIC = "ib", "roce", "none"
_KINDS = {"InfiniBand": IB, "Ethernet": ROCE}
_GIDS = 256  # IB_PORT's GID table is at most this long on the NICs known; more entries are not read.


@dataclass(frozen=True)
class Port:
    """One port of one RDMA device.

    `rate_gbit_per_s` is None where sysfs has no number. `gid_index` is the RoCE v2 entry with an IPv4 address, None where there is none.
    `chosen` is None until the sieve has decided; `reason` then says why.
    """

    device: str
    number: int
    state: str
    physical_state: str
    kind: str
    rate_gbit_per_s: float | None
    netdevs: tuple[str, ...]
    pci_address: str
    numa_node: int | None
    gid_index: int | None
    path: tuple[str, ...] = ()
    chosen: bool | None = None
    denied: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Device and port as NCCL_IB_HCA names them."""
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Fabric:
    """What the sieve decided. `reason` says why nothing was chosen where nothing was."""

    kind: str
    ports: tuple[Port, ...]
    reason: str = ""

    @property
    def chosen(self) -> tuple[Port, ...]:
        """The ports that training traffic uses."""
        return tuple(port for port in self.ports if port.chosen)

    @property
    def hca_list(self) -> str:
        """The value of NCCL_IB_HCA; empty where nothing was chosen, and then denied ports stay excluded by name."""
        if self.chosen:
            return "=" + ",".join(port.name for port in self.chosen)
        denied = [port.name for port in self.ports if port.denied]
        return "^=" + ",".join(denied) if denied else ""

    @property
    def gid_index(self) -> int | None:
        """The RoCE v2 GID index that all chosen ports share, None where they differ or one has none."""
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
    """Decide which ports training traffic uses.

    Args:
        ports: All ports of the host.
        gpus: The GPUs of the host, for nearness.
        deny: Shell patterns of devices, ports (`mlx5_0:1`), interfaces or PCI addresses that storage or management owns.
        route_devices: The interface of the cluster's route and what it stands on.
    """
    if not ports:
        return Fabric(NO_FABRIC, (), "there is no RDMA device")
    carriers = frozenset(route_devices)
    decided = [_judge(port, deny) for port in ports]
    decided = _reject(decided, lambda port: bool(carriers & set(port.netdevs)), "carries the cluster's route, and others are free")
    decided, reason = _keep_fastest(decided)
    decided = _keep_near(decided, gpus)
    kept = [port for port in decided if port.chosen]
    if not kept:
        return Fabric(NO_FABRIC, tuple(decided), reason or "no RDMA port is usable: " + _summary(decided))
    rate = kept[0].rate_gbit_per_s
    final = [replace(port, reason=f"fastest group ({rate:g} Gbit/s {port.kind})") if port.chosen else port for port in decided]
    return Fabric(kept[0].kind, tuple(final))


def near_ports(gpu: Gpu, ports: Sequence[Port]) -> tuple[tuple[str, ...], str]:
    """Return the ports nearest to a GPU and what binds them: pcie (same PCIe switch), numa, or none."""
    depths = {port.name: _shared_bridges(gpu.path, port.path) for port in ports}
    deepest = max(depths.values(), default=0)
    if deepest:
        return tuple(name for name, depth in depths.items() if depth == deepest), "pcie"
    same = tuple(port.name for port in ports if port.numa_node is not None and port.numa_node == gpu.numa_node)
    return same, "numa" if same else "none"


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


def _judge(port: Port, deny: Sequence[str]) -> Port:
    """Decide a port by itself: first what the site says, then whether it works."""
    names = (port.device, port.name, port.pci_address, *port.netdevs)
    for pattern in deny:
        if any(fnmatchcase(name, pattern) for name in names if name):
            return replace(port, chosen=False, denied=True, reason=f"denied by the site ({pattern})")
    why = _unfit(port)
    return replace(port, chosen=not why, reason=why)


def _unfit(port: Port) -> str:
    """Say why a port cannot carry traffic; empty where it can."""
    if port.state != "ACTIVE":
        return f"its state is {port.state or 'unreadable'}, not ACTIVE"
    if port.physical_state != "LinkUp":
        return f"its physical state is {port.physical_state or 'unreadable'}, not LinkUp"
    if not port.kind:
        return "its link layer is neither InfiniBand nor Ethernet"
    return "its rate cannot be read" if port.rate_gbit_per_s is None else ""


def _reject(ports: list[Port], unwanted: Callable[[Port], bool], reason: str) -> list[Port]:
    """Reject what is unwanted among the chosen, unless nothing would be left."""
    chosen = [port for port in ports if port.chosen]
    if all(unwanted(port) for port in chosen):
        return ports
    return [replace(port, chosen=False, reason=reason) if port.chosen and unwanted(port) else port for port in ports]


def _keep_fastest(ports: list[Port]) -> tuple[list[Port], str]:
    """Keep the fastest group of one link layer; of two equally fast the larger; of two equal ones none."""
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
        reason = f"InfiniBand and Ethernet have {best[1]} ports of {best[0]:g} Gbit/s each: deny one of them"
        return [replace(port, chosen=False, reason=reason) if port.chosen else port for port in ports], reason
    rate, kind = winners[0]
    loser = f"not in the fastest group ({rate:g} Gbit/s {kind}, {best[1]} ports)"
    return _reject(ports, lambda port: (port.rate_gbit_per_s, port.kind) != (rate, kind), loser), ""


def _keep_near(ports: list[Port], gpus: Sequence[Gpu]) -> list[Port]:
    """Reject ports that stand beside no GPU, on a host that is built with ports beside its GPUs.

    That is so where at least half of the GPUs share a PCIe switch with some port, whether it works or not: a dead compute port must not
    bring a storage port in.
    """
    served = sum(any(_shared_bridges(gpu.path, port.path) for port in ports) for gpu in gpus)
    if not served or 2 * served < len(gpus):
        return ports
    near = {port.name for port in ports if any(_shared_bridges(gpu.path, port.path) for gpu in gpus)}
    return _reject(ports, lambda port: port.name not in near, "behind no PCIe switch of a GPU, where this host has its compute ports")


def _shared_bridges(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many PCIe bridges two devices share below the host bridge."""
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
        gid_index=_gid_index(path) if layer == "Ethernet" else None,
        path=sysfs.device_path(device / "device"),
    )


def _word(path: Path) -> str:
    """Return the word of `4: ACTIVE`."""
    return (sysfs.read_text(path) or "").partition(":")[2].strip()


def _netdevs(device: Path, number: int) -> tuple[str, ...]:
    """Return the interfaces of one port: as its GIDs name them, else by dev_port, else all of the device."""
    attributes = device / "ports" / str(number) / "gid_attrs" / "ndevs"
    named = {sysfs.read_text(attributes / index) for index in sysfs.names_in(attributes)[:_GIDS]}
    found = tuple(sorted(name for name in named if name))
    if found:
        return found
    nets = sysfs.names_in(device / "device" / "net")
    matching = tuple(name for name in nets if sysfs.read_int(device / "device" / "net" / name / "dev_port") == number - 1)
    return matching or nets


def _gid_index(port: Path) -> int | None:
    """Return the lowest GID of the type RoCE v2 that holds an IPv4 address (::ffff:a.b.c.d)."""
    indices = sorted(int(name) for name in sysfs.names_in(port / "gids") if name.isdecimal())
    for index in indices[:_GIDS]:
        if "v2" not in (sysfs.read_text(port / "gid_attrs" / "types" / str(index)) or ""):
            continue
        try:
            address = ipaddress.IPv6Address(sysfs.read_text(port / "gids" / str(index)) or "")
        except ValueError:
            continue
        if address.ipv4_mapped is not None:
            return index
    return None
