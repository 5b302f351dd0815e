"""Where everything in hosts.yaml stands: its groups, hosts and variables with their lines, and what is wrong with its structure.

Ansible's managers give the meaning (`ansible_view`); it forgives misspelt keys and loses lines, so the places are read here.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.cluster import Origin
from primus_bootstrap.inventory.source.yaml_values import entries, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECTIONS = ("hosts", "vars", "children")
_NAME = re.compile(r"[^\W\d]\w*", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BRACKETED = re.compile(r"^\[([^\[\]]*)\](?::\d+)?$")
_MOST_HOSTS = 200_000
_NULL = "tag:yaml.org,2002:null"
_STR = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Definition:
    """One variable where it is written.

    `kind` says what `targets` are: one group, or the hosts of one host entry. `from_file` is true in group_vars/ and
    host_vars/, which outrank hosts.yaml. `encrypted` means that the whole file is under Vault: its values are never shown.
    """

    name: str
    node: yaml.Node
    origin: Origin
    kind: str
    targets: tuple[str, ...]
    from_file: bool = False
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One key under `hosts:` and the names that it expands to."""

    pattern: str
    hosts: tuple[str, ...]
    group: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One place that names a group; `parent` is empty at the top level."""

    name: str
    parent: str
    origin: Origin


@dataclass(slots=True)
class SourceMap:
    """Everything that hosts.yaml says, in its order."""

    groups: list[GroupEntry] = field(default_factory=list)
    hosts: list[HostEntry] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def host_origins(self) -> dict[str, Origin]:
        """Return where each host is written first."""
        found: dict[str, Origin] = {}
        for entry in self.hosts:
            for host in entry.hosts:
                found.setdefault(host, entry.origin)
        return found


def read_positions(root: yaml.Node, shown: str, *, expand: Callable[[str], list[str]], encrypted: bool = False) -> SourceMap:
    """Walk hosts.yaml; `expand` turns a range into names as Ansible does and raises ValueError where it is none."""
    walk = _Walk(shown, expand, encrypted=encrypted)
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        walk.problem(root, f"is {kind} at the top; an inventory is a mapping of groups", "begin the file with `all:`", "top-level")
        return walk.written
    walk.top(root)
    walk.cycles()
    return walk.written


class _Walk:
    """The walk's state: what was found so far."""

    def __init__(self, shown: str, expand: Callable[[str], list[str]], *, encrypted: bool) -> None:
        self.shown = shown
        self.encrypted = encrypted
        self.expand = expand
        self.written = SourceMap()

    def problem(self, node: yaml.Node, what: str, fix: str, rule: str) -> None:
        self.written.problems.append(Problem(self.shown, line_of(node), what, fix, rule))

    def at(self, node: yaml.Node) -> Origin:
        return Origin(self.shown, line_of(node))

    def top(self, root: yaml.MappingNode) -> None:
        for key, body in entries(root):
            if key.value in SECTIONS:
                what = f"`{key.value}` stands at the top, where Ansible takes it for a group's name"
                self.problem(key, what, f"put `all:` above it and indent `{key.value}` under it", "structure")
            elif key.value == "plugin":
                self.problem(
                    key, "is the settings of an inventory plugin, not an inventory", "give the hosts.yaml of the cluster", "structure"
                )
            else:
                self.group(key, body, "")

    def group(self, key: yaml.Node, body: yaml.Node, parent: str) -> None:
        name = str(key.value)
        if not self._good_group_name(key):
            return
        self.written.groups.append(GroupEntry(name, parent, self.at(key)))
        if body.tag == _NULL:
            return
        if not isinstance(body, yaml.MappingNode):
            what = f"group `{name}` holds {_kind(body)} where hosts, vars or children belong"
            self.problem(body, what, f"write the hosts of `{name}` as keys under `hosts:`", "structure")
            return
        for section, content in entries(body):
            self._section(name, section, content)

    def _good_group_name(self, key: yaml.Node) -> bool:
        name = str(key.value)
        if key.tag == _STR and _NAME.fullmatch(name) and name not in SECTIONS:
            return True
        if key.tag == _STR and name in SECTIONS:
            self.problem(key, f"`{name}` stands where the name of a group belongs", "indent it one level less", "structure")
            return False
        if key.tag != _STR:
            self.problem(key, f"group name `{name}` is no text in YAML", "choose a name that begins with a letter", "group-name")
            return False
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        fix = f"call it `{plain}`" if _NAME.fullmatch(plain) else "choose a name that begins with a letter"
        self.problem(key, f"group name `{name}` may hold only letters, digits and `_`", fix, "group-name")
        return False

    def _section(self, group: str, key: yaml.Node, content: yaml.Node) -> None:
        section = str(key.value)
        if section not in SECTIONS:
            near = nearest(section, SECTIONS)
            fix = f"did you mean `{near}`?" if near else f"put a group under `children:`, a variable under `vars:` of `{group}`"
            self.problem(key, f"`{section}` in group `{group}`: only hosts, vars and children may stand here", fix, "structure")
            return
        if content.tag == _NULL:
            return
        if isinstance(content, yaml.MappingNode):
            pairs: Iterator[tuple[yaml.Node, yaml.Node]] = entries(content)
        elif content.tag == _STR and section != "vars" and isinstance(content, yaml.ScalarNode) and content.value.strip():
            # Ansible reads `hosts: gpu1` as one entry.
            pairs = iter([(content, yaml.ScalarNode(_NULL, "", content.start_mark, content.end_mark))])
        else:
            what = f"`{section}` of group `{group}` is {_kind(content)}, not a mapping"
            fix = "write `name: value`" if section == "vars" else "write `name:` instead of `- name`"
            self.problem(content, what, fix, "structure")
            return
        for name, body in pairs:
            if section == "vars":
                self._definition(name, body, "group", (group,))
            elif section == "children":
                self.group(name, body, group)
            else:
                self._hosts(group, name, body)

    def _hosts(self, group: str, key: yaml.Node, body: yaml.Node) -> None:
        pattern = str(key.value)
        hosts = self._names(key)
        if not hosts:
            return
        self.written.hosts.append(HostEntry(pattern, hosts, group, self.at(key)))
        if body.tag == _NULL:
            return
        if not isinstance(body, yaml.MappingNode):
            what = f"host `{pattern}` holds {_kind(body)} where its variables belong"
            self.problem(body, what, "write its variables as `name: value` on lines of their own", "host-variables")
            return
        for name, value in entries(body):
            self._definition(name, value, "host", hosts)

    def _names(self, key: yaml.Node) -> tuple[str, ...]:
        """Return the names that a host key means; none, and a problem, where it means none."""
        pattern = str(key.value)
        if key.tag != _STR:
            self.problem(key, f"host name `{pattern}` is no text in YAML", "put it in quotes", "host-name")
            return ()
        if _HOST.fullmatch(pattern):
            return (pattern,)
        if _is_ipv6(pattern):
            fix = "give the host a name and put the address into ansible_host"
            self.problem(key, f"`{pattern}` is an IPv6 address, which cannot be a host name", fix, "host-name")
            return ()
        try:
            _refuse_endless(pattern)
            names = tuple(self.expand(pattern))
        except ValueError as error:
            self.problem(key, f"`{pattern}` is no range of hosts: {error}", "write a range as gpu[001:064]", "host-range")
            return ()
        bad = next((name for name in names if not _HOST.fullmatch(name)), None)
        if bad is not None:
            fix = "use letters, digits, `-` and `.`, with a letter or digit at both ends"
            self.problem(key, f"`{bad}` is no host name", fix, "host-name")
            return ()
        if not names:
            self.problem(key, f"range `{pattern}` means no host", "write the lower number first", "host-range")
        return names

    def _definition(self, key: yaml.Node, value: yaml.Node, kind: str, targets: tuple[str, ...]) -> None:
        self.written.definitions.append(Definition(str(key.value), value, self.at(key), kind, targets, encrypted=self.encrypted))

    def cycles(self) -> None:
        """Report every entry that makes a group its own ancestor."""
        parents: dict[str, set[str]] = {}
        for entry in self.written.groups:
            if not entry.parent:
                continue
            if entry.name in ("all", entry.parent) or entry.name in _ancestors(entry.parent, parents):
                what = f"group `{entry.name}` is its own ancestor (through `{entry.parent}`)"
                fix = f"take `{entry.name}` out of the children of `{entry.parent}`"
                self.written.problems.append(Problem(self.shown, entry.origin.line, what, fix, "group-cycle"))
            else:
                parents.setdefault(entry.name, set()).add(entry.parent)


def _ancestors(group: str, parents: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = [group]
    while open_:
        for parent in parents.get(open_.pop(), ()):
            if parent not in found:
                found.add(parent)
                open_.append(parent)
    return found


def _refuse_endless(pattern: str) -> None:
    """Count the names that a pattern's ranges mean before anyone expands them.

    Raises:
        ValueError: they are too many for memory, or the step leads nowhere.
    """
    total = 1
    for inside in _RANGE.findall(pattern):
        bounds = inside.split(":")
        if len(bounds) in (2, 3) and bounds[0].isdigit() and bounds[1].isdigit():
            step = int(bounds[2]) if len(bounds) == 3 and bounds[2].isdigit() else 1
            if step < 1:
                raise ValueError("its step is not above 0")
            total *= max(0, (int(bounds[1]) - int(bounds[0])) // step + 1)
    if total > _MOST_HOSTS:
        raise ValueError(f"it means more than {_MOST_HOSTS} hosts")


def _is_ipv6(pattern: str) -> bool:
    """Tell whether a host key is an IPv6 address, also in brackets and with a port."""
    try:
        ipaddress.IPv6Address(_BRACKETED.sub(r"\1", pattern))
    except ValueError:
        return False
    return True


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a single value"
