"""Edits of hosts.yaml: a host added, taken out, or given another value. Text in, text out; every other byte stays as it is.

What an edit means is read back from its result: where it means anything besides what was asked for, it is refused.
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
from primus_bootstrap.inventory.source.source_map import read_positions
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.inventory.edit.yaml_rewrite import Body, Holder

_CHILD = "children of"  # no name of a group or a host
_BY_HAND = "make this edit by hand, then run the same command again"


@dataclass(frozen=True, slots=True)
class NewHost:
    """A host that is to stand in hosts.yaml: its own variables, and the groups that name it."""

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)


def with_host(text: str, new: NewHost) -> str:
    """Return the text with a host more: its variables where hosts have theirs, its name at the end of each group.

    Raises:
        PlanError: this text cannot be edited.
    """
    tree = _Tree(text)
    groups = tree.needed(new.groups)
    home = "all" if any(tree.mappings("all")) or not groups else groups[0]
    bodies = {name: Leaf({}) for name in groups} | {home: Leaf(new.variables, block=tree.writes_blocks(home))}
    wanted = tree.meaning() + Counter((group, new.name) for group in bodies)
    wanted += Counter((new.name, name, _said(value)) for name, value in new.variables.items())
    text = splice(text, [_into_group(tree, group, new.name, body) for group, body in bodies.items() if group in tree.holders])
    for group in [name for name in bodies if name not in tree.holders]:
        text = splice(text, [_Tree(text).new_group(group, new.name, bodies[group])])
        wanted[_CHILD, group, "all"] += "all" in tree.holders
    return _checked(text, wanted)


def without_host(text: str, name: str) -> str:
    """Return the text without a host; a range that means it among others is split.

    Raises:
        PlanError: this text cannot be edited.
    """
    tree = _Tree(text)
    changes = []
    for mapping, pattern in tree.keys_of(name):
        left = without_name(pattern, name, expand_hosts)
        changes.append(replace_key(text, mapping, pattern, left) if left else remove_entry(text, mapping, pattern))
    wanted = Counter({fact: count for fact, count in tree.meaning().items() if (fact[0] if len(fact) == 3 else fact[1]) != name})
    return _checked(splice(text, changes), wanted)


def with_value(text: str, host: str, name: str, value: Any) -> str:
    """Return the text in which a host's own variable has another value; it must stand there, for this host alone.

    Raises:
        PlanError: it does not, or this text cannot be edited.
    """
    tree = _Tree(text)
    for mapping, pattern in tree.keys_of(host):
        body = next(body for key, body in mapping.value if key.value == pattern)
        for key, node in body.value if isinstance(body, yaml.MappingNode) and pattern == host else ():
            if key.value == name:
                wanted = tree.meaning() - Counter([(host, name, _said(value_of(node)))]) + Counter([(host, name, _said(value))])
                return _checked(splice(text, [set_value(node, value)]), wanted)
    raise PlanError(f"hosts.yaml sets no {name} for {host} alone", fix=_BY_HAND)


def host_variables(text: str, host: str) -> dict[str, yaml.Node]:
    """Return what hosts.yaml says of a host in its own entries and in ranges that mean it, the last word on each name."""
    written = _Tree(text).written
    return {one.name: one.node for one in written.definitions if one.kind == "host" and host in one.targets}


def names_in(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the groups and of the hosts that a text has.

    Raises:
        PlanError: it is not of the form of an inventory.
    """
    tree = _Tree(text)
    return frozenset(tree.holders), frozenset(tree.written.host_origins())


def direct_groups(text: str, host: str) -> tuple[str, ...]:
    """Return the groups that name a host themselves, `all` left out, in the order of the file."""
    names = (entry.group for entry in _Tree(text).written.hosts if host in entry.hosts)
    return tuple(dict.fromkeys(name for name in names if name != "all"))


def _into_group(tree: _Tree, group: str, name: str, body: Body) -> Splice:
    """Add one host to a group, where the group has its hosts; else where it has anything; else where it is named."""
    places = sorted(tree.holders[group], key=lambda place: (not _has_hosts(place), not isinstance(place[1], yaml.MappingNode)))
    hosts = _section(places[0][1], "hosts")
    return add_entry(tree.text, hosts, name, body) if hosts else add_entry(tree.text, places[0], "hosts", {name: body})


def _checked(text: str, wanted: Counter[tuple[str, ...]]) -> str:
    """Refuse a text that means anything but what was wanted."""
    try:
        meant = _Tree(text).meaning()
    except PlanError:
        meant = Counter()
    if meant != wanted:
        raise PlanError("hosts.yaml is written in a way (aliases, merges) that a program cannot edit safely", fix=_BY_HAND)
    return text


def _section(body: yaml.Node, name: str) -> Holder | None:
    pairs = body.value if isinstance(body, yaml.MappingNode) else ()
    return next(((key, value) for key, value in pairs if key.value == name), None)


def _has_hosts(holder: Holder) -> bool:
    hosts = _section(holder[1], "hosts")
    return hosts is not None and isinstance(hosts[1], yaml.MappingNode) and bool(hosts[1].value)


def _said(value: Any) -> str:
    """Return a value as text in which no two different values are alike."""
    return repr(value)


class _Tree:
    """The nodes of one text, and what they mean."""

    def __init__(self, text: str) -> None:
        try:
            root = yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.YAMLError as error:
            raise PlanError(
                f"hosts.yaml is not YAML: {' '.join(str(error).split())}", fix="primus-bootstrap validate says where"
            ) from error
        if not isinstance(root, yaml.MappingNode):
            raise PlanError("hosts.yaml holds no mapping of groups", fix="primus-bootstrap validate says what is wrong")
        self.text = text
        self.root = root
        self.written = read_positions(root, "hosts.yaml", expand=expand_hosts)
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
        """Yield the places that list hosts of a group."""
        for _, body in self.holders.get(group, ()):
            hosts = _section(body, "hosts")
            if hosts and isinstance(hosts[1], yaml.MappingNode):
                yield hosts[1]

    def keys_of(self, host: str) -> Iterator[tuple[yaml.MappingNode, str]]:
        """Yield every mapping, an aliased one once, with the key in it that means a host."""
        means = {entry.pattern for entry in self.written.hosts if host in entry.hosts}
        mappings = {id(mapping): mapping for group in self.holders for mapping in self.mappings(group)}
        for mapping in mappings.values():
            yield from ((mapping, str(key.value)) for key, _ in mapping.value if key.value in means)

    def needed(self, groups: Sequence[str]) -> tuple[str, ...]:
        """Return these groups without those that hold another of them: a member of the child is one of the parent."""
        parents: dict[str, set[str]] = {}
        for entry in self.written.groups:
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
        """Tell whether the last host with variables there has them on lines of their own."""
        bodies = [body for mapping in self.mappings(group) for _, body in mapping.value if isinstance(body, yaml.MappingNode)]
        return bool(bodies) and not bodies[-1].flow_style

    def new_group(self, group: str, name: str, body: Body) -> Splice:
        """Add a group that the text does not have, as the last child of `all`."""
        sections: Body = {"hosts": {name: body}}
        top = next((holder for holder in self.holders.get("all", ()) if isinstance(holder[1], yaml.MappingNode)), None)
        if top is None:
            return add_to(self.text, self.root, group, sections)
        children = _section(top[1], "children")
        return add_entry(self.text, children, group, sections) if children else add_entry(self.text, top, "children", {group: sections})

    def meaning(self) -> Counter[tuple[str, ...]]:
        """Return what the text says: (group, host), (host or group, variable, value), and (`children of`, group, parent)."""
        if self.written.problems:
            raise PlanError("hosts.yaml has mistakes in its structure", fix="primus-bootstrap validate names each of them")
        found: Counter[tuple[str, ...]] = Counter((entry.group, host) for entry in self.written.hosts for host in entry.hosts)
        found.update((_CHILD, *pair) for pair in sorted({(one.name, one.parent) for one in self.written.groups if one.parent}))
        for one in self.written.definitions:
            said = _said(value_of(one.node))
            found.update((target, one.name, said) for target in one.targets)
        return found
