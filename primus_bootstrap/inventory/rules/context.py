"""What the rules judge: everything that is written, with its place, beside what Ansible makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.inventory.ansible.addresses import Addresses
    from primus_bootstrap.inventory.ansible.variable_index import VariableIndex
    from primus_bootstrap.inventory.ansible.view import ManagersView
    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.source.source_map import Definition, SourceMap


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """One inventory, read.

    `groups` holds every group with its children's hosts, `all` included. `addresses` remembers what `addresses.resolve` found.
    """

    shown: str
    written: SourceMap
    definitions: tuple[Definition, ...]
    groups: Mapping[str, tuple[str, ...]]
    host_origins: Mapping[str, Origin]
    merged: VariableIndex
    view: ManagersView
    addresses: dict[str, Addresses] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host, in inventory order."""
        return self.groups["all"]

    def host_port(self, host: str) -> str:
        """Return the port that Ansible would use, that of a name such as `n1:2222` included; empty where nothing says it."""
        try:
            return str(self.view.variables(host).get("ansible_port", ""))
        except InventoryError:  # a template that fails is reported by a rule of its own
            return ""

    def group_origin(self, name: str) -> Origin:
        """Return where a group is first named, preferring a place that gives it content."""
        return next(entry.origin for entry in self.written.groups if entry.name == name)
