"""Read the groups that this project and Kubespray use, old names of groups and variables, and the names of Kubespray's variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.inventory.kubespray_release import load_releases

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class Group:
    """A group that `owner` uses: `primus` (a phase of playbooks/site.yml) or `kubespray`."""

    name: str
    owner: str
    meaning: str


@cache
def load_groups() -> Mapping[str, Group]:
    """Return every known group by name, in file order."""
    data = yaml.safe_load((_DATA / "groups.yml").read_text(encoding="utf-8"))
    return {name: Group(name, raw["owner"], raw["meaning"]) for name, raw in data["groups"].items()}


@cache
def load_old_names() -> Mapping[str, Mapping[str, str]]:
    """Return the new name of each old one, under the keys `groups` and `variables`."""
    names: Mapping[str, Mapping[str, str]] = yaml.safe_load((_DATA / "old_names.yml").read_text(encoding="utf-8"))
    return names


@cache
def load_earlier_variables() -> Mapping[str, Mapping[str, str]]:
    """Return variables of earlier releases of this project: `renamed` gives the new name of each, `removed` the reason."""
    names: Mapping[str, Mapping[str, str]] = yaml.safe_load((_DATA / "earlier_variables.yml").read_text(encoding="utf-8"))
    return names


@cache
def load_kubespray_variables() -> frozenset[str]:
    """Return the names of Kubespray's variables in any of its releases, which hosts.yaml may set."""
    added = frozenset[str]().union(*(release.added for release in load_releases().values()))
    return added | frozenset(yaml.safe_load((_DATA / "kubespray_variables.yml").read_text(encoding="utf-8")))
