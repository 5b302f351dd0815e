"""Which definition of a variable counts for a host, with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.source.source_map import Definition


@dataclass(frozen=True, slots=True)
class VariableIndex:
    """The definitions of one inventory by variable, in Ansible's order of precedence.

    Ansible's managers give the same answer a hundred times slower, and lose the place; a contract test keeps the two equal.
    `depths` is the place of each group in Ansible's order: depth below `all`, then `ansible_group_priority`.
    """

    groups: Mapping[str, tuple[str, ...]]
    depths: Mapping[str, tuple[int, int]]
    by_name: Mapping[str, tuple[Definition, ...]]
    _cache: dict[str, dict[str, Definition]] = field(default_factory=dict)

    def of(self, variable: str) -> Mapping[str, Definition]:
        """Return the definition that counts for each host that has the variable."""
        if variable not in self._cache:
            winners: dict[str, Definition] = {}
            for definition in sorted(self.by_name.get(variable, ()), key=self._rank):
                for target in definition.targets:
                    hosts = self.groups.get(target, ()) if definition.kind == "group" else (target,)
                    winners.update(dict.fromkeys(hosts, definition))
            self._cache[variable] = winners
        return self._cache[variable]

    def origin(self, host: str, variable: str) -> Origin | None:
        """Return where the value that counts for one host is written."""
        found = self.of(variable).get(host)
        return found.origin if found else None

    def _rank(self, definition: Definition) -> tuple[int, int, int, str]:
        """Return the precedence: https://docs.ansible.com/ansible/latest/reference_appendices/config.html#variable-precedence."""
        if definition.kind == "host":
            return (5 if definition.from_file else 4, 0, 0, "")
        name = definition.targets[0]
        if name == "all":
            return (2 if definition.from_file else 0, 0, 0, "")
        return (3 if definition.from_file else 1, *self.depths.get(name, (0, 1)), name)


def index_definitions(definitions: Iterable[Definition]) -> dict[str, tuple[Definition, ...]]:
    """Return the definitions by variable, each in the order in which they are written."""
    found: dict[str, list[Definition]] = {}
    for definition in definitions:
        found.setdefault(definition.name, []).append(definition)
    return {name: tuple(several) for name, several in found.items()}
