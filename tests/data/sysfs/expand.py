"""Expand a machine's description (one of the .yml files beside this one) into a tree that looks like its /sys and /proc.

    python3 expand.py MACHINE.yml FOLDER

pci:      address: {id, class, numa, under: [bridges], subsystem, physfn}
rdma:     device: {pci, layer, rate, ports: {number: {state, phys, rate, netdev, ip, gids}}}
net:      interface: {lower: [interfaces]}
routes:   [interface, network, metric]
damage:   path: missing | dangling | loop | folder (unreadable even for root) | text: what the file then holds
"""

from __future__ import annotations

import ipaddress
import shutil
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import yaml


def expand(description: Path, root: Path) -> Path:
    """Write the tree below `root` and return it."""
    machine = yaml.safe_load(description.read_text())
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "proc/net").mkdir(parents=True, exist_ok=True)
    for address, device in (machine.get("pci") or {}).items():
        _pci(root, address, device)
    for name, interface in (machine.get("net") or {}).items():
        for lower in (interface or {}).get("lower", ()):
            _link(root / f"sys/class/net/{name}/lower_{lower}", f"../{lower}")
        (root / f"sys/class/net/{name}").mkdir(parents=True, exist_ok=True)
    for name, device in (machine.get("rdma") or {}).items():
        _rdma(root, name, device)
    _routes(root, machine.get("routes") or [])
    for path, damage in (machine.get("damage") or {}).items():
        break_path(root / path, damage)
    return root


def _write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _pci(root: Path, address: str, device: dict[str, Any]) -> None:
    under = "/".join(device.get("under", ["pci0000:00"]))
    folder = root / "sys/devices" / under / address
    vendor, number = device["id"].split(":")
    _write(folder / "vendor", f"0x{vendor}")
    _write(folder / "device", f"0x{number}")
    _write(folder / "class", f"0x{device['class']}")
    _write(folder / "numa_node", device.get("numa", -1))
    for part, value in zip(("vendor", "device"), device.get("subsystem", device["id"]).split(":")):
        _write(folder / f"subsystem_{part}", f"0x{value}")
    if "physfn" in device:
        _link(folder / "physfn", f"../{device['physfn']}")
    _link(root / "sys/bus/pci/devices" / address, f"../../../devices/{under}/{address}")


def _rdma(root: Path, name: str, device: dict[str, Any]) -> None:
    folder = root / "sys/class/infiniband" / name
    if "pci" in device:
        target = (root / "sys/bus/pci/devices" / device["pci"]).resolve()
        _link(folder / "device", f"../../../{target.relative_to((root / 'sys').resolve())}")
    for number, port in device.get("ports", {1: {}}).items():
        _port(folder / "ports" / str(number), device, port or {})


def _port(folder: Path, device: dict[str, Any], port: dict[str, Any]) -> None:
    layer = device.get("layer", "Ethernet")
    _write(folder / "state", {"ACTIVE": "4: ACTIVE", "DOWN": "1: DOWN", "INIT": "2: INIT"}[port.get("state", "ACTIVE")])
    _write(folder / "phys_state", {"LinkUp": "5: LinkUp", "Disabled": "3: Disabled"}[port.get("phys", "LinkUp")])
    _write(folder / "link_layer", layer)
    _write(folder / "rate", f"{port.get('rate', device.get('rate', 400))} Gb/sec (4X NDR)")
    for index, (gid, kind) in enumerate(_gids(layer, port)):
        _write(folder / "gids" / str(index), gid.exploded)
        _write(folder / "gid_attrs/types" / str(index), kind)
        if "netdev" in port:
            _write(folder / "gid_attrs/ndevs" / str(index), port["netdev"])


def _gids(layer: str, port: dict[str, Any]) -> list[tuple[ipaddress.IPv6Address, str]]:
    """Return a port's GID table: as given, or the usual one of its link layer."""
    if "gids" in port:
        return [(ipaddress.IPv6Address(gid), kind) for gid, kind in port["gids"]]
    local = ipaddress.IPv6Address("fe80::a288:c2ff:fe00:1")
    if layer == "InfiniBand":
        return [(local, "IB/RoCE v1")]
    mapped = [ipaddress.IPv6Address(f"::ffff:{port['ip']}")] if "ip" in port else []
    return [(gid, kind) for gid in (local, *mapped) for kind in ("IB/RoCE v1", "RoCE v2")]


def _routes(root: Path, routes: list[list[Any]]) -> None:
    lines4, lines6 = ["Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"], []
    for device, network, metric in routes:
        net = ipaddress.ip_network(network)
        if net.version == 4:
            destination, mask = (_little_endian(str(address)) for address in (net.network_address, net.netmask))
            lines4.append(f"{device}\t{destination}\t00000000\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0")
        else:
            lines6.append(f"{net.network_address.packed.hex()} {net.prefixlen:02x} {'0' * 32} 00 {'0' * 32} {metric:08x} 00000001 00000000 00000003 {device}")
    _write(root / "proc/net/route", "\n".join(lines4))
    _write(root / "proc/net/ipv6_route", "\n".join(lines6))


def _little_endian(address: str) -> str:
    return f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}"


def break_path(path: Path, damage: str) -> None:
    """Break one file or folder; the words are those of `damage` above."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if damage == "dangling":
        _link(path, "../nowhere/at/all")
    elif damage == "loop":
        _link(path, path.name)
    elif damage == "folder":
        path.mkdir(parents=True)
    elif damage != "missing":
        _write(path, damage)


if __name__ == "__main__":
    expand(Path(sys.argv[1]), Path(sys.argv[2]))
