"""Find the definition of a variable that is effective for each host, by Ansible's precedence, with its file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.source.source_map import Definition


@dataclass(frozen=True, slots=True)
class VariableIndex:
    """The definitions of one inventory by variable.

    Ansible's variable manager gives the same values, but some hundred times slower and without positions.
    `tests/contract/test_inventory_agrees_with_ansible.py` compares the two.
    """

    groups: Mapping[str, tuple[str, ...]]  # every group with its hosts and those of its children
    depths: Mapping[str, tuple[int, int]]  # each group's depth below `all` and its `ansible_group_priority`
    by_name: Mapping[str, tuple[Definition, ...]]  # the definitions of each variable, in file order
    _cache: dict[str, dict[str, Definition]] = field(default_factory=dict)

    def by_host(self, variable: str) -> Mapping[str, Definition]:
        """Return the effective definition for each host that has the variable."""
        if variable not in self._cache:
            effective: dict[str, Definition] = {}
            for definition in sorted(self.by_name.get(variable, ()), key=self._precedence):
                for target in definition.targets:
                    hosts = self.groups.get(target, ()) if definition.kind == "group" else (target,)
                    effective.update(dict.fromkeys(hosts, definition))
            self._cache[variable] = effective
        return self._cache[variable]

    def origin(self, host: str, variable: str) -> Origin | None:
        """Return where the effective value for a host is set; None if it is not set."""
        definition = self.by_host(variable).get(host)
        return definition.origin if definition else None

    def _precedence(self, definition: Definition) -> tuple[int, int, int, str]:
        """Return the sort key: https://docs.ansible.com/ansible/latest/reference_appendices/config.html#variable-precedence."""
        if definition.kind == "host":
            return (5 if definition.from_file else 4, 0, 0, "")
        name = definition.targets[0]
        if name == "all":
            return (2 if definition.from_file else 0, 0, 0, "")
        return (3 if definition.from_file else 1, *self.depths.get(name, (0, 1)), name)


def index_definitions(definitions: Iterable[Definition]) -> dict[str, tuple[Definition, ...]]:
    """Return the definitions by variable name, in file order."""
    found: dict[str, list[Definition]] = {}
    for definition in definitions:
        found.setdefault(definition.name, []).append(definition)
    return {name: tuple(several) for name, several in found.items()}
