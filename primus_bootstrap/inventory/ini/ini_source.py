"""An INI inventory as its author wrote it: Ansible's own plugin gives the meaning, this module keeps order, places and comments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ansible import constants as C  # noqa: N812 (its own name for it)
from ansible._internal._datatag._tags import Origin
from ansible.errors import AnsibleError
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory.ini import InventoryModule
from ansible.utils.shlex import shlex_split

from primus_bootstrap.core.errors import InventoryError, Problem

if TYPE_CHECKING:
    from pathlib import Path

_SECRET_IN_COMMENT = re.compile(r"(\w*(?:password|passwd|_pass|secret|token)\w*)\s*=\s*\S.*")


@dataclass(slots=True)
class Variable:
    """One `name=value`; `raw` is its text, `value` what Ansible makes of it."""

    name: str
    value: Any
    raw: str
    line: int


@dataclass(slots=True)
class Entry:
    """One line of a section: a host (pattern) with its variables, a child group, or one variable.

    `above` are the comment lines before it (`""` is an empty line), `beside` the comment at its end.
    """

    name: str
    line: int
    variables: list[Variable] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    beside: str = ""


@dataclass(slots=True)
class Section:
    """Everything that the file says about one group.

    `line` is that of its first header, 0 for `all` as long as it has none. `below` are comments after its last line.
    """

    name: str
    line: int
    above: list[str] = field(default_factory=list)
    hosts: list[Entry] = field(default_factory=list)
    children: list[Entry] = field(default_factory=list)
    variables: list[Entry] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    def part(self, kind: str) -> list[Entry]:
        """Return the entries of one kind of header: `hosts`, `children` or `vars`."""
        return {"hosts": self.hosts, "children": self.children, "vars": self.variables}[kind]


def read_ini(path: Path) -> tuple[Section, ...]:
    """Return the groups of an INI inventory in the order of the file; hosts above the first header belong to `all`.

    Raises:
        InventoryError: Ansible itself cannot read the file.
    """
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InventoryError([Problem(str(path), 0, f"cannot be read: {error.strerror}", "give an INI inventory", "unreadable")]) from error
    return _Reader(path).read(lines)


class _Reader:
    """One pass over the lines with Ansible's plugin at hand."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._plugin: Any = InventoryModule()
        self._sections: dict[str, Section] = {}
        self._pending: list[str] = []

    def read(self, lines: list[str]) -> tuple[Section, ...]:
        self._check(lines)
        section, part = self._section("all", 0), "hosts"
        for number, raw in enumerate(lines, start=1):
            text = raw.strip()
            header = self._plugin.patterns["section"].match(text)
            if not text or text[0] in "#;":
                self._pending.append(_comment(text))
            elif header:
                name, part = header.group(1), header.group(2) or "hosts"
                above = self._close(section)
                section = self._section("all" if name == "ungrouped" else name, number)
                if section.part(part) or section.line not in (0, number):
                    self._pending = above  # a second header of the group: what introduces it stays at its first line
                else:
                    section.above.extend(above)
                section.line = section.line or number
            else:
                self._entry(section, part, number, text)
        section.below.extend(self._pending)
        return tuple(self._sections.values())

    def _check(self, lines: list[str]) -> None:
        """Let Ansible read the whole file once: what it refuses is refused here, with the line."""
        plugin = self._plugin
        plugin.inventory, plugin.loader, plugin._origin = InventoryData(), DataLoader(), Origin(path=str(self._path.absolute()), line_num=0)  # noqa: SLF001
        spelling = C.TRANSFORM_INVALID_GROUP_CHARS
        C.TRANSFORM_INVALID_GROUP_CHARS = "ignore"  # no warning about the dashes that the import replaces
        plugin._compile_patterns()  # noqa: SLF001
        self._refuse_own_child(lines)
        try:
            plugin._parse(lines)  # noqa: SLF001
        except (AnsibleError, ValueError) as error:
            what = f"Ansible cannot read this as INI: {error}"
            line = plugin._origin.line_num or 0  # noqa: SLF001
            fix = "mend the line, or give an INI inventory (a YAML inventory needs no import: validate it)"
            raise InventoryError([Problem(str(self._path), line, what, fix, "ini-syntax")]) from error
        finally:
            C.TRANSFORM_INVALID_GROUP_CHARS = spelling

    def _refuse_own_child(self, lines: list[str]) -> None:
        """Refuse a group that is its own child: Ansible stops there with an exception that has no class of its own."""
        parent = ""
        for number, raw in enumerate(lines, start=1):
            text = raw.strip()
            if header := self._plugin.patterns["section"].match(text):
                parent = header.group(1) if header.group(2) == "children" else ""
            elif parent and text.partition("#")[0].strip() == parent:
                what = f"group {parent} is its own child"
                raise InventoryError([Problem(str(self._path), number, what, "remove the line", "ini-syntax")])

    def _section(self, name: str, line: int) -> Section:
        return self._sections.setdefault(name, Section(name, line))

    def _close(self, section: Section) -> list[str]:
        """Give comments that follow a section without a gap to it; return the others, which introduce the next one."""
        pending, self._pending = self._pending, []
        untouched = not (section.hosts or section.children or section.variables or section.above) and section.line == 0
        gap = pending.index("") if "" in pending and not untouched else 0
        section.below.extend(pending[:gap])
        return pending[gap:]

    def _entry(self, section: Section, part: str, number: int, text: str) -> None:
        if part == "vars":
            name, raw = (piece.strip() for piece in text.split("=", 1))
            value = self._plugin._parse_value(raw)  # noqa: SLF001
            entry = Entry(name, number, [Variable(name, plain(value), raw, number)])
        elif part == "children":
            beside = _comment(text[text.index("#") :]) if "#" in text else ""
            entry = Entry(self._plugin._parse_group_name(text), number, beside=beside)  # noqa: SLF001
        else:
            entry = self._host(number, text)
        entry.above, self._pending = self._pending, []
        section.part(part).append(entry)

    def _host(self, number: int, text: str) -> Entry:
        tokens = shlex_split(text, comments=True)
        hosts, port, _variables = self._plugin._parse_host_definition(text)  # noqa: SLF001
        pattern = tokens[0].removesuffix(f":{port}") if port else tokens[0]
        if len(hosts) == 1:
            pattern = plain(hosts[0])  # an IPv6 address without its brackets, which YAML's reader takes for a range
        entry = Entry(pattern, number, beside=_trailing_comment(text, tokens))
        if port:
            entry.variables.append(Variable("ansible_port", port, str(port), number))
        for token in tokens[1:]:
            name, raw = token.split("=", 1)
            entry.variables.append(Variable(name, plain(self._plugin._parse_value(raw)), raw, number))  # noqa: SLF001
        return entry


def _comment(text: str) -> str:
    """Return an INI comment as a YAML one, without a secret that was only commented out; an empty line stays empty."""
    body = _SECRET_IN_COMMENT.sub(r"\1=...", text[1:])
    return "#" + (f" {body}" if body[:1] not in {"", " ", "#"} else body) if text else ""


def _trailing_comment(text: str, tokens: list[str]) -> str:
    """Return the comment at a host line's end: what can be cut off without changing how the shell's rules split it."""
    for at, letter in enumerate(text):
        if letter == "#":
            try:
                if shlex_split(text[:at]) == tokens:
                    return _comment(text[at:])
            except ValueError:  # inside quotes
                continue
    return ""


def plain(value: Any) -> Any:
    """Return a value without Ansible's tags, which a YAML writer does not know."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value
