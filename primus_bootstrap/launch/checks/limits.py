"""Limits, and the messages of the kernel that mean something: data/checks, each with its source."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Limit:
    """One limit; its unit is in its name."""

    value: Any
    source: str


@cache
def table(name: str) -> Mapping[str, Any]:
    """Return one file of data/checks."""
    text = pkgutil.get_data("primus_bootstrap.launch", f"data/checks/{name}.yml")
    return dict(yaml.safe_load(text or b""))


def limit(name: str) -> Limit:
    """Return one limit."""
    entry = table("limits")[name]
    return Limit(entry["value"], entry["source"])
