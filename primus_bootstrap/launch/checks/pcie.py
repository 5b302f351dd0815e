"""Read the PCI Express link of a device: its current width and speed, and the maximum of both ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import UnavailableError, require_text
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = "max_link_width and max_link_speed of both ends; Linux drivers/pci/pci-sysfs.c"
FIX = "reseat the card or its riser; check the slot's settings in the firmware and `lspci -vv`"


@dataclass(frozen=True)
class Link:
    """The current width (lanes) and speed (GT/s) of a link, and the maximum that both ends support."""

    width: int
    max_width: int
    speed: float
    max_speed: float


def read_link(device: Path) -> Link:
    """Read the link of a PCI device.

    Raises:
        UnavailableError: sysfs does not report it.
    """
    width, max_width = (_width(device / f"{which}_link_width") for which in ("current", "max"))
    speed, max_speed = (_speed(device / f"{which}_link_speed") for which in ("current", "max"))
    bridge = device.resolve().parent
    if sysfs.read_text(bridge / "max_link_width") is not None:
        max_width = min(max_width, _width(bridge / "max_link_width"))
        max_speed = min(max_speed, _speed(bridge / "max_link_speed"))
    return Link(width, max_width, speed, max_speed)


def _width(path: Path) -> int:
    text = require_text(path)
    # The kernel reports 255 for a link that it cannot read and 0 for a link that is down (pci-sysfs.c, pcie_capability_read_word).
    if not text.isdecimal() or int(text) in (0, 255):
        raise UnavailableError(f"{path} contains no width: {text[:60]!r}", fix="check that the device responds: lspci -vv")
    return int(text)


def _speed(path: Path) -> float:
    text = require_text(path)
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", text)
    if match is None:
        raise UnavailableError(f"{path} contains no speed: {text[:60]!r}", fix="check that the device responds: lspci -vv")
    return float(match[1])
