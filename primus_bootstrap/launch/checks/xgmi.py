"""Read the XGMI links between AMD GPUs from KFD's topology in sysfs.

amdgpu's file xgmi_error is not read, because reading resets the error (Linux drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import UnavailableError, list_names, require_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from primus_bootstrap.launch.detect import sysfs

SOURCE = "KFD topology, io_links of type 11: Linux drivers/gpu/drm/amd/amdkfd/kfd_crat.h (CRAT_IOLINK_TYPE_XGMI)"
_XGMI = 11


@dataclass(frozen=True)
class XgmiLinks:
    """The links by card, each card by domain, bus and device. `in_hive`: at least one GPU belongs to a group of linked GPUs."""

    linked: Mapping[str, frozenset[str]]
    in_hive: bool


def read_xgmi(host: sysfs.Host, addresses: Iterable[str]) -> XgmiLinks:
    """Return the cards that each of the GPUs has a link to.

    Raises:
        UnavailableError: KFD reports no node, or a file cannot be read.
    """
    folder = host.path("sys", "class", "kfd", "kfd", "topology", "nodes")
    nodes = {name: _properties(folder / name / "properties") for name in list_names(folder)}
    if not nodes:
        raise UnavailableError(f"{folder} contains no node", fix="see `dmesg | grep kfd`")
    hives = [name for name, found in nodes.items() if found.get("simd_count") and found.get("hive_id")]
    cards = {name: _card(nodes[name]) for name in hives}
    linked: dict[str, set[str]] = {card_of(address): set() for address in addresses}
    for name in hives:
        ends = [_properties(folder / name / "io_links" / link / "properties") for link in list_names(folder / name / "io_links")]
        others = {cards.get(str(end.get("node_to")), "") for end in ends if end.get("type") == _XGMI}
        linked.setdefault(cards[name], set()).update(others - {cards[name], ""})
    return XgmiLinks({card: frozenset(others) for card, others in linked.items()}, bool(hives))


def _properties(path: Path) -> Mapping[str, int]:
    return {match[1]: int(match[2]) for match in re.finditer(r"^(\w+) (\d+)$", require_text(path), re.MULTILINE)}


def _card(found: Mapping[str, int]) -> str:
    """Return domain, bus and device of a KFD node. Partitions of one card are several nodes that differ in the function only."""
    location = found.get("location_id", 0)  # bus, device and function, packed as in PCI
    return f"{found.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"


def card_of(address: str) -> str:
    """Return domain, bus and device of a PCI address."""
    return address.partition(".")[0]
