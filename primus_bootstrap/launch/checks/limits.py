"""Read the data of the checks: data/checks/*.yml."""

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
    """One limit. Its name contains the unit."""

    value: Any
    source: str


@cache
def table(name: str) -> Mapping[str, Any]:
    """Return the content of one file of data/checks."""
    text = pkgutil.get_data("primus_bootstrap.launch", f"data/checks/{name}.yml")
    return dict(yaml.safe_load(text or b""))


def limit(name: str) -> Limit:
    """Return one entry of limits.yml."""
    entry = table("limits")[name]
    return Limit(entry["value"], entry["source"])
