"""Read an INI inventory with its order, lines and comments. Ansible's INI plugin parses the values."""

from __future__ import annotations

import codecs
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
from primus_bootstrap.inventory.ansible.view import quiet

if TYPE_CHECKING:
    from pathlib import Path

_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SECRET_IN_COMMENT = re.compile(r"(\w*(?:password|passwd|_pass|secret|token)\w*)\s*=\s*\S.*")


@dataclass(slots=True)
class Variable:
    """One `name=value`. `raw` is the text of the value, `value` Ansible's result."""

    name: str
    value: Any
    raw: str
    line: int


@dataclass(slots=True)
class Entry:
    """One line of a section: a host pattern with its variables, a child group, or a variable.

    `above` are the comment lines above it, with an empty string for a blank line; `beside` is the comment at its end.
    """

    name: str
    line: int
    variables: list[Variable] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    beside: str = ""


@dataclass(slots=True)
class Section:
    """All sections of one group.

    `line` is the line of its first header; 0 for `all` without a header. `below` are the comments after its last entry.
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
    """Return the groups of an INI inventory in file order. Hosts above the first header belong to `all`.

    Raises:
        InventoryError: Ansible cannot read the file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InventoryError(
            [Problem(str(path), 0, f"cannot be read: {error.strerror}", "check the path and its permissions", "unreadable")]
        ) from error
    return _Reader(path).read(_decode(path, content).splitlines())


def _decode(path: Path, content: bytes) -> str:
    """Return the text of a file.

    Raises:
        InventoryError: It is not UTF-8. A byte order mark names the encoding; bytes that no text has mean that it is no text.
    """
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not utf16 and _NO_TEXT.search(content):
        raise InventoryError([Problem(str(path), 0, "is not a text file", "name the INI inventory of the cluster", "encoding")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        fix = f"convert the file: iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8 {path} > {path}.utf8"
        raise InventoryError([Problem(str(path), line, "is not UTF-8", fix, "encoding")]) from error


class _Reader:
    """Reads the lines of one file."""

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
                    self._pending = above  # a second header of the group: its comments belong to its first entry
                else:
                    section.above.extend(above)
                section.line = section.line or number
            else:
                self._entry(section, part, number, text)
        section.below.extend(self._pending)
        return tuple(self._sections.values())

    def _check(self, lines: list[str]) -> None:
        """Parse the whole file with Ansible.

        Raises:
            InventoryError: Ansible cannot read the file; with the line.
        """
        plugin = self._plugin
        plugin.inventory, plugin.loader, plugin._origin = InventoryData(), DataLoader(), Origin(path=str(self._path.absolute()), line_num=0)  # noqa: SLF001
        spelling = C.TRANSFORM_INVALID_GROUP_CHARS
        C.TRANSFORM_INVALID_GROUP_CHARS = "ignore"  # no warning about the dashes that the import replaces
        plugin._compile_patterns()  # noqa: SLF001
        self._check_own_children(lines)
        try:
            with quiet():
                plugin._parse(lines)  # noqa: SLF001
        except (AnsibleError, ValueError) as error:
            what = f"Ansible cannot read this as INI: {error}"
            line = plugin._origin.line_num or 0  # noqa: SLF001
            fix = "correct the line; if the file is YAML, run instead: primus-bootstrap validate"
            raise InventoryError([Problem(str(self._path), line, what, fix, "ini-syntax")]) from error
        finally:
            C.TRANSFORM_INVALID_GROUP_CHARS = spelling

    def _check_own_children(self, lines: list[str]) -> None:
        """Check that no group is its own child. Ansible raises a plain Exception for it."""
        parent = ""
        for number, raw in enumerate(lines, start=1):
            text = raw.strip()
            if header := self._plugin.patterns["section"].match(text):
                parent = header.group(1) if header.group(2) == "children" else ""
            elif parent and text.partition("#")[0].strip() == parent:
                what = f"group {parent} is its own child"
                raise InventoryError([Problem(str(self._path), number, what, "delete the line", "ini-syntax")])

    def _section(self, name: str, line: int) -> Section:
        return self._sections.setdefault(name, Section(name, line))

    def _close(self, section: Section) -> list[str]:
        """Add the comments directly below a section to it; return the others, which belong to the next section."""
        pending, self._pending = self._pending, []
        untouched = not (section.hosts or section.children or section.variables or section.above) and section.line == 0
        gap = pending.index("") if "" in pending and not untouched else 0
        section.below.extend(pending[:gap])
        return pending[gap:]

    def _entry(self, section: Section, part: str, number: int, text: str) -> None:
        if part == "vars":
            name, raw = (piece.strip() for piece in text.split("=", 1))
            value = self._plugin._parse_value(raw)  # noqa: SLF001
            entry = Entry(name, number, [Variable(name, untagged(value), raw, number)])
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
            pattern = untagged(hosts[0])  # an IPv6 address without brackets, which would be a range in YAML
        entry = Entry(pattern, number, beside=_trailing_comment(text, tokens))
        if port:
            entry.variables.append(Variable("ansible_port", port, str(port), number))
        for token in tokens[1:]:
            name, raw = token.split("=", 1)
            entry.variables.append(Variable(name, untagged(self._plugin._parse_value(raw)), raw, number))  # noqa: SLF001
        return entry


def _comment(text: str) -> str:
    """Return an INI comment as a YAML comment, without secrets in it; an empty line stays empty."""
    body = _SECRET_IN_COMMENT.sub(r"\1=...", text[1:])
    return "#" + (f" {body}" if body[:1] not in {"", " ", "#"} else body) if text else ""


def _trailing_comment(text: str, tokens: list[str]) -> str:
    """Return the comment at the end of a host line: the part that can be removed without changing the tokens of the line."""
    for at, letter in enumerate(text):
        if letter == "#":
            try:
                if shlex_split(text[:at]) == tokens:
                    return _comment(text[at:])
            except ValueError:  # inside quotes
                continue
    return ""


def untagged(value: Any) -> Any:
    """Return a value without Ansible's tags, which the YAML writer does not support."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {untagged(key): untagged(item) for key, item in value.items()}
    if isinstance(value, list):
        return [untagged(item) for item in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value
