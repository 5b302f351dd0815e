"""The groups that mean something in hosts.yaml, read from `data/groups.yml`: the one place that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class Group:
    """A group that some program reads: `primus` (a phase of ours) or `kubespray`."""

    name: str
    owner: str
    meaning: str


@cache
def load_groups() -> Mapping[str, Group]:
    """Return every known group by name, in the order of the file."""
    data = yaml.safe_load((_DATA / "groups.yml").read_text(encoding="utf-8"))
    return {name: Group(name, raw["owner"], raw["meaning"]) for name, raw in data["groups"].items()}


@cache
def load_kubespray_variables() -> frozenset[str]:
    """Return the names of the variables that pass through to Kubespray."""
    return frozenset(yaml.safe_load((_DATA / "kubespray_variables.yml").read_text(encoding="utf-8")))
