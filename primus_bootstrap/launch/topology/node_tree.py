"""The topology of a node from sysfs: NUMA nodes, PCIe host bridges and switches, GPUs and NICs. What cannot be read is `unknown`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import UnavailableError
from primus_bootstrap.launch.checks.pcie import read_link
from primus_bootstrap.launch.detect import nics, sysfs
from primus_bootstrap.launch.topology.tree import UNKNOWN, Item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.nics import Port

_KINDS = {nics.IB: "InfiniBand", nics.ROCE: "RoCE"}


@dataclass(frozen=True)
class _Device:
    """A GPU or a port, with its place."""

    item: Item
    numa_node: int | None
    path: tuple[str, ...]


@dataclass
class _Branch:
    """A PCIe host bridge or switch while the tree is built."""

    kind: str
    branches: dict[str, _Branch] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)

    def to_items(self) -> tuple[Item, ...]:
        found = [Item(branch.kind, name, "", branch.to_items()) for name, branch in sorted(self.branches.items())]
        return (*found, *self.items)


def node_tree(node: Node, name: str) -> Item:
    """Return the topology of a node without the links between its GPUs."""
    devices = [*_gpus(node), *_ports(node), *_interfaces(node)]
    numbers = sorted({*_numa_nodes(node.host), *(device.numa_node for device in devices if device.numa_node is not None)})
    items = [_numa_item(node.host, number, [device for device in devices if device.numa_node == number]) for number in numbers]
    elsewhere = [device for device in devices if device.numa_node is None]
    if elsewhere:
        items.append(Item("NUMA node", UNKNOWN, "the firmware does not report it", _pcie_items(elsewhere)))
    return Item("node", name, _summary(node), tuple(items))


def _summary(node: Node) -> str:
    found = node.gpu_findings
    gpus = f"{len(found.gpus)} x {found.name or 'GPU'}" if found.gpus else "no GPU"
    return f"{gpus} ({UNKNOWN}: {found.reason})" if found.verdict == UNKNOWN else gpus


def _numa_nodes(host: sysfs.Host) -> list[int]:
    names = sysfs.names_in(host.path("sys", "devices", "system", "node"))
    return [int(name[4:]) for name in names if re.fullmatch(r"node\d+", name)]


def _numa_item(host: sysfs.Host, number: int, devices: Sequence[_Device]) -> Item:
    folder = host.path("sys", "devices", "system", "node", f"node{number}")
    memory = re.search(r"MemTotal:\s*(\d+) kB", sysfs.read_text(folder / "meminfo") or "")
    size = f"{int(memory[1]) / (1 << 20):.0f} GiB" if memory else UNKNOWN
    detail = f"CPUs {sysfs.read_text(folder / 'cpulist') or UNKNOWN}, memory {size}"
    return Item("NUMA node", str(number), detail, _pcie_items(devices))


def _pcie_items(devices: Sequence[_Device]) -> tuple[Item, ...]:
    """Return the devices below their host bridges and switches. Root ports and the ports of a switch are left out."""
    root = _Branch("")
    for device in devices:
        branch = root
        for kind, name in _bridges(device.path):
            branch = branch.branches.setdefault(name, _Branch(kind))
        branch.items.append(device.item)
    return root.to_items()


def _bridges(path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield host bridge and switches of a path: host bridge, root port, then an upstream and a downstream port for each switch."""
    if not path:
        yield "PCIe path", UNKNOWN
        return
    yield "PCIe host bridge", path[0].replace("pci", "", 1)
    above = path[1:-1]
    for index in range(1, len(above), 2):
        yield ("PCIe switch" if index + 1 < len(above) else "PCIe bridge"), above[index]


def _gpus(node: Node) -> Iterator[_Device]:
    for number, gpu in enumerate(node.gpu_findings.gpus):
        detail = f"{gpu.name or f'{UNKNOWN} model {gpu.device_id}'}, {gpu.address}, {_link(node, gpu.address)}"
        yield _Device(Item("GPU", str(number), detail), gpu.numa_node, gpu.path)


def _ports(node: Node) -> Iterator[_Device]:
    for port in nics.read_ports(node.host):
        yield _Device(Item("NIC", port.name, _port_text(node, port)), port.numa_node, port.path)


def _port_text(node: Node, port: Port) -> str:
    rate = f"rate {UNKNOWN}" if port.rate_gbit_per_s is None else f"{port.rate_gbit_per_s:g} Gbit/s"
    kind, state, address = _KINDS.get(port.kind, f"link layer {UNKNOWN},"), port.state or f"state {UNKNOWN}", port.pci_address
    words = [f"{kind} {rate}", state, *port.netdevs, address or f"PCI address {UNKNOWN}"]
    if port.physical_function:
        words.append(f"virtual function of {port.physical_function}")
    return ", ".join([*words, _link(node, port.pci_address)])


def _interfaces(node: Node) -> Iterator[_Device]:
    """Yield the network interfaces of PCI devices that are not RDMA devices."""
    rdma = {port.pci_address for port in nics.read_ports(node.host)}
    folder = node.host.path("sys", "class", "net")
    for name in sorted(sysfs.names_in(folder), key=nics.natural):
        device = folder / name / "device"
        path = tuple(part for part in sysfs.device_path(device) if ":" in part)  # without the bus below a PCI device, such as virtio0
        address = path[-1] if path else ""
        if not path or address in rdma:
            continue
        number, speed = sysfs.read_int(device / "numa_node"), sysfs.read_int(folder / name / "speed")
        rate = f"{speed / 1000:g} Gbit/s" if speed is not None and speed > 0 else f"speed {UNKNOWN}"
        detail = f"Ethernet {rate}, {sysfs.read_text(folder / name / 'operstate') or UNKNOWN}, {address}, {_link(node, address)}"
        yield _Device(Item("NIC", name, detail), number if number is not None and number >= 0 else None, path)


def _link(node: Node, address: str) -> str:
    """Return width and speed of a device's PCIe link, and the maximum if it is higher."""
    try:
        link = read_link(node.pci(address))
    except UnavailableError:
        return f"PCIe link {UNKNOWN}"
    highest = f" of x{link.max_width} {link.max_speed:g} GT/s" if (link.width, link.speed) != (link.max_width, link.max_speed) else ""
    return f"PCIe x{link.width} {link.speed:g} GT/s{highest}"
