"""The input of the rules: the source of hosts.yaml with its positions, and the inventory as Ansible loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.inventory.ansible.addresses import AddressResolver
    from primus_bootstrap.inventory.ansible.variable_index import VariableIndex
    from primus_bootstrap.inventory.cluster import AnsibleView, Origin
    from primus_bootstrap.inventory.source.source_map import SourceMap


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """One inventory.

    `groups` maps every group, `all` included, to its hosts and those of its children.
    """

    display_path: str
    source_map: SourceMap
    groups: Mapping[str, tuple[str, ...]]
    host_origins: Mapping[str, Origin]
    variable_index: VariableIndex
    view: AnsibleView
    resolver: AddressResolver

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host, in inventory order."""
        return self.groups["all"]

    @property
    def kubernetes_hosts(self) -> tuple[str, ...]:
        """The hosts of the Kubernetes cluster, control planes first."""
        groups = ("kube_control_plane", "kube_node", "etcd")
        return tuple(dict.fromkeys(host for group in groups for host in self.groups.get(group, ())))

    def host_port(self, host: str) -> str:
        """Return the SSH port that Ansible would use, also from a name such as `n1:2222`; empty if none is set."""
        try:
            return str(self.view.variables(host).get("ansible_port", ""))
        except InventoryError:  # `unresolvable` reports a template that fails
            return ""

    def resolved_values(self, host: str, names: Iterable[str]) -> dict[str, Any]:
        """Return the variables that are set for a host, without those whose value only a run can resolve."""
        values = {}
        for name in names:
            if host in self.variable_index.by_host(name):
                try:
                    values[name] = self.view.variables(host)[name]
                except InventoryError:  # `unresolvable` reports a template that fails
                    continue
        return values

    def group_origin(self, name: str) -> Origin:
        """Return the first line that names a group."""
        return next(entry.origin for entry in self.source_map.groups if entry.name == name)

    def origin(self, host: str, variable: str, group: str) -> Origin:
        """Return where the effective value of a host's variable is set, or where the group is named if it is not set."""
        return self.variable_index.origin(host, variable) or self.group_origin(group)


Rule = Callable[[ValidationContext], Iterator[Problem]]
