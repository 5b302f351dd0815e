"""Record the line of every group, host and variable in hosts.yaml, and check the file's structure.

Ansible ignores misspelt keys and does not keep the lines of all keys.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.cluster import Origin
from primus_bootstrap.inventory.source.yaml_levels import SECTIONS
from primus_bootstrap.inventory.source.yaml_values import entries, is_null, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NAME = re.compile(r"[^\W\d]\w*", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BRACKETED = re.compile(r"^\[([^\[\]]*)\](?::\d+)?$")
_MAX_HOSTS = 200_000
_NULL = "tag:yaml.org,2002:null"
_STR = "tag:yaml.org,2002:str"
# Names of mappings that hold only anchors: https://docs.docker.com/reference/compose-file/extension/ and
# https://docs.gitlab.com/ci/jobs/#hide-a-job
_ANCHOR_NAMES = ("x-", ".")
# What the keys of a section are.
_EXPECTED = {"hosts": "host", "vars": "variable", "children": "group"}
_ANCHOR_FIX = "move it to the beginning of `vars:` of `all`, with a name such as `site_common`"


@dataclass(frozen=True, slots=True)
class Definition:
    """One line that sets a variable."""

    name: str
    node: yaml.Node
    origin: Origin
    kind: str  # `group` or `host`
    targets: tuple[str, ...]  # one group, or the hosts of one key under `hosts:`
    from_file: bool = False  # the file is in group_vars/ or host_vars/, which have precedence over hosts.yaml
    encrypted: bool = False  # the whole file is under Vault; messages never show its values


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One key under `hosts:` with the host names that it expands to."""

    pattern: str
    hosts: tuple[str, ...]
    group: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One key that names a group; `parent` is empty at the top level."""

    name: str
    parent: str
    origin: Origin


@dataclass(slots=True)
class SourceMap:
    """The groups, hosts and variables of hosts.yaml, in file order."""

    groups: list[GroupEntry] = field(default_factory=list)
    hosts: list[HostEntry] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def host_origins(self) -> dict[str, Origin]:
        """Return the first line that names each host."""
        found: dict[str, Origin] = {}
        for entry in self.hosts:
            for host in entry.hosts:
                found.setdefault(host, entry.origin)
        return found


def map_source(
    root: yaml.Node,
    display_path: str,
    *,
    expand: Callable[[str], list[str]],
    encrypted: bool = False,
    suggest_group: Callable[[str], str] | None = None,
) -> SourceMap:
    """Return the map of one hosts.yaml.

    Args:
        root: The file's content.
        display_path: The path that problems show.
        expand: Expands a host range as Ansible does; it raises ValueError for an invalid one.
        encrypted: Whether the file is encrypted with Vault.
        suggest_group: Returns the known group that a name probably means, or an empty string.
    """
    walk = _Walk(root, display_path, expand, encrypted=encrypted, suggest_group=suggest_group or (lambda _name: ""))
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        walk.problem(root, f"is {kind}; an inventory is a mapping of groups", "begin the file with `all:`", "top-level")
        return walk.source_map
    walk.top(root)
    walk.cycles()
    return walk.source_map


def host_name_fault(name: str) -> tuple[str, str] | None:
    """Return what is wrong with a host name and the fix, or None."""
    if name in SECTIONS:
        return (
            f"`{name}` cannot be the name of a host",
            "choose another name; hosts.yaml uses `hosts`, `vars` and `children` for its structure",
        )
    if _HOST.fullmatch(name):
        return None
    return f"`{name}` is not a valid host name", "use letters, digits, `-`, `_` and `.`; begin and end with a letter or digit"


class _Walk:
    """Walks over the nodes and fills a `SourceMap`."""

    def __init__(
        self,
        root: yaml.Node,
        display_path: str,
        expand: Callable[[str], list[str]],
        *,
        encrypted: bool,
        suggest_group: Callable[[str], str],
    ) -> None:
        self.root = root
        self.display_path = display_path
        self.suggest_group = suggest_group
        self.encrypted = encrypted
        self.expand = expand
        self.source_map = SourceMap()

    def problem(self, node: yaml.Node, what: str, fix: str, rule: str) -> None:
        self.source_map.problems.append(Problem(self.display_path, line_of(node), what, fix, rule))

    def at(self, node: yaml.Node) -> Origin:
        return Origin(self.display_path, line_of(node))

    def top(self, root: yaml.MappingNode) -> None:
        if sections := [key for key, _ in entries(root) if key.value in SECTIONS]:
            names, verb, pronoun = _words(sections)
            what = f"{names} {verb} at the top level, where Ansible reads {pronoun} as the name of a group"
            self.problem(sections[0], what, f"insert `all:` above {pronoun} and indent {names}", "structure")
        for key, body in entries(root):
            if key in sections:
                continue
            if key.value == "plugin":
                what = "is the configuration of an inventory plugin, not an inventory"
                self.problem(key, what, "name the hosts.yaml of the cluster", "structure")
            else:
                self.group(key, body, "")

    def group(self, key: yaml.Node, body: yaml.Node, parent: str) -> None:
        name = str(key.value)
        if self._is_anchor(name, body):
            what = f"`{name}` holds values for aliases, but Ansible reads it as a group"
            self.problem(key, what, _ANCHOR_FIX, "group-name")
            return
        if not self._good_group_name(key):
            return
        self.source_map.groups.append(GroupEntry(name, parent, self.at(key)))
        if is_null(body):
            return
        if not isinstance(body, yaml.MappingNode):
            what = f"group `{name}` is {_kind(body)}, not a mapping with `hosts`, `vars` or `children`"
            self.problem(body, what, f"write the hosts of `{name}` as keys under `hosts:`", "structure")
            return
        for section, content in entries(body):
            self._section(name, section, content)

    def _good_group_name(self, key: yaml.Node) -> bool:
        name = str(key.value)
        if key.tag == _STR and _NAME.fullmatch(name):
            return True
        if key.tag != _STR:
            self.problem(key, f"group name `{name}` is not a string in YAML", "rename the group: begin with a letter", "group-name")
            return False
        plain = self.suggest_group(name) or re.sub(r"\W", "_", name, flags=re.ASCII)
        fix = f"rename it to `{plain}`" if _NAME.fullmatch(plain) else "rename the group: begin with a letter"
        self.problem(key, f"group name `{name}` must contain only letters, digits and `_`", fix, "group-name")
        return False

    def _is_anchor(self, name: str, body: yaml.Node) -> bool:
        """Return whether a mapping is no group, but the values of an anchor: by its name, or because aliases use it."""
        if not isinstance(body, yaml.MappingNode) or not body.value or any(key.value in SECTIONS for key, _ in entries(body)):
            return False
        return name.startswith(_ANCHOR_NAMES) or (not self.suggest_group(name) and _is_aliased(self.root, body))

    def _report_sections(self, keys: Sequence[yaml.Node], kind: str, *places: tuple[int, str]) -> None:
        """Report sections that are indented wrongly, all of one mapping together.

        Args:
            keys: The sections.
            kind: What is expected in their place.
            places: Where they may belong: the spaces to add (negative: to remove; 0 in `{…}`, without lines), and the group.
        """
        if keys:
            names, verb, pronoun = _words(keys)
            ways = (f"by {abs(spaces)} spaces {'more' if spaces > 0 else 'less'}, under group `{group}`" for spaces, group in places)
            fix = f"indent {pronoun} with all lines in {pronoun} {', or '.join(ways)}"
            if not places[0][0]:
                fix = f"move {pronoun} to group `{places[0][1]}`"
            self.problem(keys[0], f"{names} {verb} where the name of a {kind} is expected", fix, "structure")

    def _section(self, group: str, key: yaml.Node, content: yaml.Node) -> None:
        section = str(key.value)
        if section not in SECTIONS and self._is_anchor(section, content):
            self.problem(key, f"`{section}` in group `{group}` holds values for aliases", _ANCHOR_FIX, "structure")
            return
        if section not in SECTIONS:
            near = nearest(section, SECTIONS)
            fix = f"did you mean `{near}`?" if near else f"move a group under `children:`, or a variable under `vars:`, of `{group}`"
            self.problem(key, f"`{section}` in group `{group}`: only `hosts`, `vars` and `children` are allowed here", fix, "structure")
            return
        if is_null(content):
            return
        if isinstance(content, yaml.MappingNode):
            pairs = list(entries(content))
        elif content.tag == _STR and section != "vars" and isinstance(content, yaml.ScalarNode) and content.value.strip():
            # Ansible reads `hosts: gpu1` as one entry.
            pairs = [(content, yaml.ScalarNode(_NULL, "", content.start_mark, content.end_mark))]
        else:
            what = f"`{section}` of group `{group}` is {_kind(content)}, not a mapping"
            fix = "write `name: value`" if section == "vars" else "write `name:` instead of `- name`"
            self.problem(content, what, fix, "structure")
            return
        misplaced = [name for name, _ in pairs if name.value in SECTIONS]
        self._report_sections(misplaced, _EXPECTED[section], *_places(group, key, pairs))
        for name, body in pairs:
            if name in misplaced:
                continue
            if section == "vars":
                self._definition(name, body, "group", (group,))
            elif section == "children":
                self.group(name, body, group)
            else:
                self._hosts(group, key, name, body)

    def _hosts(self, group: str, section: yaml.Node, key: yaml.Node, body: yaml.Node) -> None:
        pattern = str(key.value)
        hosts = self._names(key)
        if not hosts:
            return
        self.source_map.hosts.append(HostEntry(pattern, hosts, group, self.at(key)))
        if is_null(body):
            return
        if not isinstance(body, yaml.MappingNode):
            what = f"host `{pattern}` has {_kind(body)} instead of a mapping of variables"
            self.problem(body, what, "write each of its variables as `name: value` on a separate line", "host-variables")
            return
        misplaced = [name for name, _ in entries(body) if name.value in SECTIONS]
        self._report_sections(misplaced, f"variable of host `{pattern}`", *((-_step(section, one), group) for one in misplaced[:1]))
        for name, value in entries(body):
            if name not in misplaced:
                self._definition(name, value, "host", hosts)

    def _names(self, key: yaml.Node) -> tuple[str, ...]:
        """Return the host names that a key expands to. If it is invalid, report a problem and return none."""
        pattern = str(key.value)
        if key.tag != _STR:
            self.problem(key, f"host name `{pattern}` is not a string in YAML", "put it in quotes", "host-name")
            return ()
        if _HOST.fullmatch(pattern):
            return (pattern,)
        if _is_ipv6(pattern):
            fix = "replace it with a host name, and set ansible_host to the address"
            self.problem(key, f"`{pattern}` is an IPv6 address, which cannot be a host name", fix, "host-name")
            return ()
        try:
            _check_range_size(pattern)
            names = tuple(self.expand(pattern))
        except ValueError as error:
            self.problem(key, f"`{pattern}` is not a valid host range: {error}", "write a range as gpu[001:064]", "host-range")
            return ()
        fault = next((found for name in names if (found := host_name_fault(name))), None)
        if fault is not None:
            self.problem(key, *fault, "host-name")
            return ()
        if not names:
            self.problem(key, f"range `{pattern}` contains no host", "write the lower number first", "host-range")
        return names

    def _definition(self, key: yaml.Node, value: yaml.Node, kind: str, targets: tuple[str, ...]) -> None:
        self.source_map.definitions.append(Definition(str(key.value), value, self.at(key), kind, targets, encrypted=self.encrypted))

    def cycles(self) -> None:
        """Report each entry that makes a group an ancestor of itself."""
        parents: dict[str, set[str]] = {}
        for entry in self.source_map.groups:
            if not entry.parent:
                continue
            if entry.name in ("all", entry.parent) or entry.name in _ancestors(entry.parent, parents):
                what = f"group `{entry.name}` is an ancestor of itself (through `{entry.parent}`)"
                fix = f"delete `{entry.name}` from the children of `{entry.parent}`"
                self.source_map.problems.append(entry.origin.problem(what, fix, "group-cycle"))
            else:
                parents.setdefault(entry.name, set()).add(entry.parent)


def _ancestors(group: str, parents: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [group]
    while pending:
        for parent in parents.get(pending.pop(), ()):
            if parent not in found:
                found.add(parent)
                pending.append(parent)
    return found


def _is_aliased(root: yaml.Node, node: yaml.Node) -> bool:
    """Return whether an alias or a merge uses a node again."""
    visited: set[int] = set()
    uses, pending = 0, [root]
    while pending:
        current = pending.pop()
        uses += current is node
        if isinstance(current, yaml.CollectionNode) and id(current) not in visited:
            visited.add(id(current))
            pending.extend(chain.from_iterable(current.value) if isinstance(current, yaml.MappingNode) else current.value)
    return uses > 1


def _places(group: str, section: yaml.Node, pairs: Sequence[tuple[yaml.Node, yaml.Node]]) -> Iterator[tuple[int, str]]:
    """Yield where the first misplaced section in a section belongs: under the empty group above it, or beside the section."""
    first = next((number for number, (name, _) in enumerate(pairs) if name.value in SECTIONS), 0)
    step = _step(section, pairs[first][0]) if pairs else 0
    above, body = pairs[first - 1] if first else (section, section)
    if section.value == "children" and is_null(body):
        yield step, str(above.value)
    yield -step, group


def _step(outer: yaml.Node, inner: yaml.Node) -> int:
    """Return by how many spaces a key is indented more than another one; 0 if both are on one line, in `{…}`."""
    return int(inner.start_mark.column - outer.start_mark.column) if line_of(inner) != line_of(outer) else 0


def _words(keys: Sequence[yaml.Node]) -> tuple[str, str, str]:
    """Return the names of keys, and the verb and pronoun that agree with their number."""
    *others, last = (f"`{key.value}`" for key in keys)
    return (f"{', '.join(others)} and {last}", "are", "them") if others else (last, "is", "it")


def _check_range_size(pattern: str) -> None:
    """Count the names of a host range before it is expanded.

    Raises:
        ValueError: There are more than `_MAX_HOSTS`, or the step is below 1.
    """
    total = 1
    for inside in _RANGE.findall(pattern):
        bounds = inside.split(":")
        if len(bounds) in (2, 3) and bounds[0].isdigit() and bounds[1].isdigit():
            step = int(bounds[2]) if len(bounds) == 3 and bounds[2].isdigit() else 1
            if step < 1:
                raise ValueError("its step must be 1 or more")
            total *= max(0, (int(bounds[1]) - int(bounds[0])) // step + 1)
    if total > _MAX_HOSTS:
        raise ValueError(f"it contains more than {_MAX_HOSTS} hosts")


def _is_ipv6(pattern: str) -> bool:
    """Return whether a host key is an IPv6 address, also in brackets and with a port."""
    try:
        ipaddress.IPv6Address(_BRACKETED.sub(r"\1", pattern))
    except ValueError:
        return False
    return True


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a single value"
