"""Families of network cards, from data/nics.yml."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping


@cache
def families() -> Mapping[str, Mapping[str, Any]]:
    """Return every family by name, with PCI vendor and drivers."""
    return dict(yaml.safe_load(pkgutil.get_data("primus_bootstrap.launch", "data/nics.yml") or b""))


def family_of(vendor: str, driver: str) -> str:
    """Return the family of a card, or an empty string.

    Args:
        vendor: The PCI vendor as in sysfs, such as 0x15b3.
        driver: The kernel driver of the PCI device; empty if it cannot be read.
    """
    known = (name for name, one in families().items() if vendor == f"0x{one['vendor']}" and driver in ("", *one["drivers"]))
    return next(known, "")
