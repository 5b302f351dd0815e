"""Edit the text of hosts.yaml: add or remove a host, or change a value. Every other byte stays the same.

Each edited text is parsed again. If it describes more than the requested change, the edit is rejected.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.ansible.view import expand_hosts
from primus_bootstrap.inventory.edit.host_ranges import without_name
from primus_bootstrap.inventory.edit.yaml_rewrite import Leaf, Splice, add_entry, add_to, remove_entry, replace_key, set_value, splice
from primus_bootstrap.inventory.source.source_map import map_source
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.inventory.edit.yaml_rewrite import Body, Holder

_CHILD_FACT = "children of"  # cannot be the name of a group or host
_VALIDATE = "see every mistake with its line: primus-bootstrap validate"
_BY_HAND = "edit hosts.yaml yourself, then run the same command again"


@dataclass(frozen=True, slots=True)
class NewHost:
    """A host to add to hosts.yaml: its variables, and the groups to list it in."""

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)


def with_host(text: str, new: NewHost) -> str:
    """Return the text with a new host at the end of each of its groups. Its variables go to `all`, or else to its first group.

    Raises:
        PlanError: The text cannot be edited safely.
    """
    tree = _Tree(text)
    groups = tree.lowest_groups(new.groups)
    home = "all" if any(tree.mappings("all")) or not groups else groups[0]
    bodies = {name: Leaf({}) for name in groups} | {home: Leaf(new.variables, block=tree.writes_blocks(home))}
    expected = tree.facts() + Counter((group, new.name) for group in bodies)
    expected += Counter((new.name, name, _text_of(value)) for name, value in new.variables.items())
    text = splice(text, [_into_group(tree, group, new.name, body) for group, body in bodies.items() if group in tree.holders])
    for group in [name for name in bodies if name not in tree.holders]:
        text = splice(text, [_Tree(text).new_group(group, new.name, bodies[group])])
        expected[_CHILD_FACT, group, "all"] += "all" in tree.holders
    return _verified(text, expected)


def without_host(text: str, name: str) -> str:
    """Return the text without a host. A range that contains it is split.

    Raises:
        PlanError: The text cannot be edited safely.
    """
    tree = _Tree(text)
    changes = []
    for mapping, pattern in tree.keys_with(name):
        remaining = without_name(pattern, name, expand_hosts)
        changes.append(replace_key(text, mapping, pattern, remaining) if remaining else remove_entry(text, mapping, pattern))
    expected = Counter({fact: count for fact, count in tree.facts().items() if (fact[0] if len(fact) == 3 else fact[1]) != name})
    return _verified(splice(text, changes), expected)


def with_value(text: str, host: str, name: str, value: Any) -> str:
    """Return the text with another value of a variable that is set for this host alone.

    Raises:
        PlanError: The variable is not set for this host alone, or the text cannot be edited safely.
    """
    tree = _Tree(text)
    for mapping, pattern in tree.keys_with(host):
        body = next(body for key, body in mapping.value if key.value == pattern)
        for key, node in body.value if isinstance(body, yaml.MappingNode) and pattern == host else ():
            if key.value == name:
                expected = tree.facts() - Counter([(host, name, _text_of(value_of(node)))]) + Counter([(host, name, _text_of(value))])
                return _verified(splice(text, [set_value(node, value)]), expected)
    raise PlanError(f"hosts.yaml does not set {name} for {host} alone", fix=_BY_HAND)


def host_variables(text: str, host: str) -> dict[str, yaml.Node]:
    """Return the variables of a host from its entries and ranges under `hosts:`; the last definition of a name is effective."""
    definitions = _Tree(text).source_map.definitions
    return {one.name: one.node for one in definitions if one.kind == "host" and host in one.targets}


def names_in(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the groups, and the names of the hosts.

    Raises:
        PlanError: The text is not an inventory.
    """
    tree = _Tree(text)
    return frozenset(tree.holders), frozenset(tree.source_map.host_origins())


def direct_groups(text: str, host: str) -> tuple[str, ...]:
    """Return the groups that list a host themselves, without `all`, in file order."""
    names = (entry.group for entry in _Tree(text).source_map.hosts if host in entry.hosts)
    return tuple(dict.fromkeys(name for name in names if name != "all"))


def _into_group(tree: _Tree, group: str, name: str, body: Body) -> Splice:
    """Add one host to a group: to the entry of the group that lists hosts, else to one with content, else to its first entry."""
    holders = sorted(tree.holders[group], key=lambda holder: (not _has_hosts(holder), not isinstance(holder[1], yaml.MappingNode)))
    hosts = _section(holders[0][1], "hosts")
    return add_entry(tree.text, hosts, name, body) if hosts else add_entry(tree.text, holders[0], "hosts", {name: body})


def _verified(text: str, expected: Counter[tuple[str, ...]]) -> str:
    """Return the text if it has exactly the expected facts.

    Raises:
        PlanError: It has others.
    """
    try:
        facts = _Tree(text).facts()
    except PlanError:
        facts = Counter()
    if facts != expected:
        raise PlanError("hosts.yaml uses YAML features (aliases, merges) that this command cannot edit safely", fix=_BY_HAND)
    return text


def _section(body: yaml.Node, name: str) -> Holder | None:
    pairs = body.value if isinstance(body, yaml.MappingNode) else ()
    return next(((key, value) for key, value in pairs if key.value == name), None)


def _has_hosts(holder: Holder) -> bool:
    hosts = _section(holder[1], "hosts")
    return hosts is not None and isinstance(hosts[1], yaml.MappingNode) and bool(hosts[1].value)


def _text_of(value: Any) -> str:
    """Return a value as text that is different for different values."""
    return repr(value)


class _Tree:
    """The YAML nodes of one text."""

    def __init__(self, text: str) -> None:
        try:
            root = yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.YAMLError as error:
            raise PlanError(f"hosts.yaml is not YAML: {' '.join(str(error).split())}", fix=_VALIDATE) from error
        if not isinstance(root, yaml.MappingNode):
            raise PlanError("hosts.yaml is not a mapping of groups", fix=_VALIDATE)
        self.text = text
        self.root = root
        self.source_map = map_source(root, "hosts.yaml", expand=expand_hosts)
        self.holders: dict[str, list[Holder]] = {}
        for pair in root.value:
            self._collect(pair)

    def _collect(self, holder: Holder) -> None:
        key, body = holder
        self.holders.setdefault(str(key.value), []).append(holder)
        children = _section(body, "children")
        for pair in children[1].value if children and isinstance(children[1], yaml.MappingNode) else ():
            self._collect(pair)

    def mappings(self, group: str) -> Iterator[yaml.MappingNode]:
        """Yield the mappings that list hosts of a group."""
        for _, body in self.holders.get(group, ()):
            hosts = _section(body, "hosts")
            if hosts and isinstance(hosts[1], yaml.MappingNode):
                yield hosts[1]

    def keys_with(self, host: str) -> Iterator[tuple[yaml.MappingNode, str]]:
        """Yield each mapping and key that contains a host; a mapping with aliases only once."""
        patterns = {entry.pattern for entry in self.source_map.hosts if host in entry.hosts}
        mappings = {id(mapping): mapping for group in self.holders for mapping in self.mappings(group)}
        for mapping in mappings.values():
            yield from ((mapping, str(key.value)) for key, _ in mapping.value if key.value in patterns)

    def lowest_groups(self, groups: Sequence[str]) -> tuple[str, ...]:
        """Return the groups without those that are ancestors of another one; a host of the child is also a host of the parent."""
        parents: dict[str, set[str]] = {}
        for entry in self.source_map.groups:
            parents.setdefault(entry.name, set()).add(entry.parent)
        above: set[str] = set()
        pending = [parent for group in groups for parent in parents.get(group, ())]
        while pending:
            name = pending.pop()
            if name not in above:
                above.add(name)
                pending += parents.get(name, ())
        return tuple(dict.fromkeys(group for group in groups if group not in above))

    def writes_blocks(self, group: str) -> bool:
        """Return whether the variables of the group's last host are on separate lines."""
        bodies = [body for mapping in self.mappings(group) for _, body in mapping.value if isinstance(body, yaml.MappingNode)]
        return bool(bodies) and not bodies[-1].flow_style

    def new_group(self, group: str, name: str, body: Body) -> Splice:
        """Add a new group as the last child of `all`."""
        sections: Body = {"hosts": {name: body}}
        top = next((holder for holder in self.holders.get("all", ()) if isinstance(holder[1], yaml.MappingNode)), None)
        if top is None:
            return add_to(self.text, self.root, group, sections)
        children = _section(top[1], "children")
        return add_entry(self.text, children, group, sections) if children else add_entry(self.text, top, "children", {group: sections})

    def facts(self) -> Counter[tuple[str, ...]]:
        """Return the facts of the text: (group, host), (host or group, variable, value), and (`children of`, group, parent)."""
        if self.source_map.problems:
            raise PlanError("the structure of hosts.yaml is wrong", fix=_VALIDATE)
        found: Counter[tuple[str, ...]] = Counter((entry.group, host) for entry in self.source_map.hosts for host in entry.hosts)
        found.update((_CHILD_FACT, *pair) for pair in sorted({(one.name, one.parent) for one in self.source_map.groups if one.parent}))
        for one in self.source_map.definitions:
            value = _text_of(value_of(one.node))
            found.update((target, one.name, value) for target in one.targets)
        return found
