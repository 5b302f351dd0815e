"""One file of the inventory as a tree of YAML nodes, or the problem that keeps it from being one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml
from yaml.constructor import ConstructorError

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.source.yaml_values import line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

VAULT_HEADER = b"$ANSIBLE_VAULT;"
_INI_SECTION = re.compile(r"^\s*\[[^\]\s,]+\]\s*(?:[#;].*)?$", re.MULTILINE)
_INI_HOST = re.compile(r"^\s*[\w.-]+(?:\s+\w+=\S+)+\s*$", re.MULTILINE)
_TAB_INDENT = re.compile(r"^ *\t", re.MULTILINE)
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BRACKET = re.compile(r"[\[\]{}]")
_MOST_LEVELS = 100
_DEEP_INDENT = re.compile(r"^(?: {100}|(?:[-?:] +){50})", re.MULTILINE)
_MOST_NODES = 20_000_000  # values after every alias is expanded; 12,500 hosts with twenty variables each are half a million
# The tags of mappings and lists that Ansible's YAML reader takes.
_COLLECTION_TAGS: Mapping[type, tuple[str, ...]] = {
    yaml.MappingNode: ("tag:yaml.org,2002:map", "tag:yaml.org,2002:set", "!unsafe"),
    yaml.SequenceNode: ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:omap", "tag:yaml.org,2002:pairs", "!unsafe"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file as read. `node` is None where the file is empty, sealed or wrong; `sealed` means that the Vault password is missing."""

    shown: str
    node: yaml.Node | None = None
    problems: tuple[Problem, ...] = ()
    encrypted: bool = False
    sealed: bool = False


def read_source(path: Path, shown: str, *, decrypt: Callable[[bytes], bytes] | None) -> Source:
    """Read one file; `decrypt` opens a file that is encrypted as a whole and raises ValueError where it cannot."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return Source(shown, problems=(Problem(shown, 0, f"cannot be read: {error.strerror}", "make the file readable", "unreadable"),))
    encrypted = data.startswith(VAULT_HEADER)
    if encrypted:
        if decrypt is None:
            return Source(shown, encrypted=True, sealed=True)
        try:
            data = decrypt(data)
        except ValueError as error:
            return Source(shown, encrypted=True, problems=(_wrong_password(shown, str(error)),))
    source = _parse(data, shown)
    return Source(shown, source.node, source.problems, encrypted=encrypted)


def _wrong_password(shown: str, reason: str) -> Problem:
    return Problem(shown, 1, f"cannot be decrypted: {reason}", "give the right Vault password (--vault-password-file)", "vault-password")


def _parse(data: bytes, shown: str) -> Source:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Source(shown, problems=(_undecodable(data, shown, data.count(b"\n", 0, error.start) + 1),))
    if "\0" in text:
        return Source(shown, problems=(_undecodable(data, shown, text.count("\n", 0, text.index("\0")) + 1),))
    try:
        node = _compose(text)
    except (yaml.YAMLError, RecursionError) as error:
        return Source(shown, problems=(_not_yaml(text, shown, error),))
    if node is None:
        return Source(shown)
    if not isinstance(node, yaml.MappingNode) and _looks_like_ini(text):
        return Source(shown, problems=(_ini_problem(shown, text),))
    problems = _Check(shown).tree(node)
    broken = any(problem.rule != "duplicate-key" for problem in problems)
    return Source(shown, None if broken else node, tuple(problems))


def _compose(text: str) -> yaml.Node | None:
    """Return the tree; a nesting that would overflow libyaml's stack is a RecursionError."""
    if _may_be_deep(text) and _is_deep(text):
        raise RecursionError
    # YAML allows no tab between tokens and JSON does; JSON has no raw tab inside its strings.
    return yaml.compose(text.replace("\t", " ") if _is_json(text) else text, Loader=yaml.CSafeLoader)


def _may_be_deep(text: str) -> bool:
    """Tell quickly whether the nesting must be counted: brackets in text and comments count here as well."""
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "[{" else -1
        if depth > _MOST_LEVELS:
            return True
    return bool(_DEEP_INDENT.search(text))


def _is_deep(text: str) -> bool:
    """Count the nesting, which needs no stack."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_LEVELS:
                return True
    except yaml.YAMLError:
        pass  # said when the text is composed, which stops at the same place
    return False


def _is_json(text: str) -> bool:
    if "\t" not in text or not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _undecodable(data: bytes, shown: str, line: int) -> Problem:
    if data.startswith((b"#!", b"\x7fELF")) or b"\0" in data[:1024]:
        return _program(shown)
    return Problem(shown, line, "is not UTF-8 text", "save the file as UTF-8", "not-text")


def _program(shown: str) -> Problem:
    fix = "give the hosts.yaml of the cluster; a dynamic inventory is never run"
    return Problem(shown, 1, "is a program or binary data, not an inventory", fix, "not-text")


def _looks_like_ini(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    if not lines or lines[0].startswith(("---", "{")):
        return False
    return bool(_INI_SECTION.match(lines[0]) or _INI_HOST.match(lines[0]) or (":" not in lines[0] and _INI_SECTION.search(text)))


def _ini_problem(shown: str, text: str) -> Problem:
    lines = enumerate(text.splitlines(), 1)
    first = next((number for number, line in lines if line.strip() and not line.lstrip().startswith(("#", ";"))), 1)
    return Problem(shown, first, "is an INI inventory, not YAML", f"turn it into YAML: primus-bootstrap import {shown}", "ini-file")


def _not_yaml(text: str, shown: str, error: Exception) -> Problem:
    """Say what is wrong in words of people; libyaml's own where it is nothing common."""
    if text.startswith("#!"):
        return _program(shown)
    if _looks_like_ini(text):
        return _ini_problem(shown, text)
    if isinstance(error, yaml.MarkedYAMLError):
        return _syntax(text, shown, error)
    if isinstance(error, RecursionError):
        return Problem(shown, 0, "is nested too deeply", "flatten the structure", "not-yaml")
    odd = _UNPRINTABLE.search(text)
    line = text.count("\n", 0, odd.start()) + 1 if odd else 0
    return Problem(shown, line, "is not YAML: it holds a control character", "remove the control character", "not-yaml")


def _syntax(text: str, shown: str, error: yaml.MarkedYAMLError) -> Problem:
    reason = error.problem or "cannot be parsed"
    # A key without its colon is noticed on a later line; the context is where it stands.
    mark = (error.context_mark if "expected ':'" in reason else None) or error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    if tab := _TAB_INDENT.search(text):
        at = text.count("\n", 0, tab.end()) + 1
        return Problem(shown, at, "is indented with a tab; YAML allows only spaces", "replace the tab by spaces", "tab")
    for words, what, fix, rule in _SYNTAX:
        if words in reason:
            return Problem(shown, line, what, fix, rule)
    return Problem(shown, line, f"is not YAML: {reason}", "mend the line, or put the value in quotes", "not-yaml")


# libyaml's words for what people do (https://github.com/yaml/libyaml/blob/0.2.5/src/parser.c and scanner.c).
_SYNTAX = (
    (
        "did not find expected key",
        "does not fit the indentation of the lines above",
        "indent it like the other entries of the same level",
        "indentation",
    ),
    (
        "did not find expected '-' indicator",
        "does not fit the list above",
        "indent it like the list's other entries",
        "indentation",
    ),
    (
        "mapping values are not allowed",
        "has a `:` where YAML allows none",
        "check the indentation of this line and the one above, or put the value in quotes",
        "indentation",
    ),
    (
        "could not find expected ':'",
        "has no `:` after its key",
        "end a name with `:` (a host without variables is `gpu1:`)",
        "missing-colon",
    ),
    (
        "but found another document",
        "holds a second YAML document",
        "keep one document a file: delete the `---` line",
        "not-yaml",
    ),
    (
        "found undefined alias",
        "uses an alias (`*name`) that no anchor (`&name`) defines",
        "put the value in quotes, or define the anchor",
        "not-yaml",
    ),
    (
        "found unexpected end of stream",
        "has a quote or bracket that is never closed",
        "close it",
        "not-yaml",
    ),
)  # fmt: skip


@dataclass(slots=True)
class _Check:
    """One walk over every node: duplicate keys, unknown tags, aliases that hold themselves or grow without end."""

    shown: str
    sizes: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def tree(self, root: yaml.Node) -> list[Problem]:
        try:
            size = self._walk(root)
        except RecursionError:
            self._add(root, "is nested too deeply", "flatten the structure", "not-yaml")
            return self.problems
        if size > _MOST_NODES:
            self._add(root, f"its aliases expand to {size} values", "write less of it with aliases", "not-yaml")
        return self.problems

    def _add(self, node: yaml.Node, what: str, fix: str, rule: str) -> None:
        self.problems.append(Problem(self.shown, line_of(node), what, fix, rule))

    def _walk(self, node: yaml.Node) -> int:
        known = self.sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in self.open:
            self._add(node, "holds an alias to itself", "write the value out", "not-yaml")
            return 1
        self.open.add(id(node))
        size = 1
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTION_TAGS[type(node)]:
            self._unknown_tag(node)
        if isinstance(node, yaml.MappingNode):
            self._keys(node)
            size += sum(self._walk(key) + self._walk(value) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            size += sum(self._walk(item) for item in node.value)
        elif node.tag != "tag:yaml.org,2002:str":
            self._scalar(node)
        self.open.discard(id(node))
        self.sizes[id(node)] = size
        return size

    def _scalar(self, node: yaml.Node) -> None:
        if node.tag in ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"):
            return
        kind = node.tag.rpartition(":")[2]
        try:
            value_of(node)
        except ConstructorError:
            self._unknown_tag(node)
        except (ValueError, TypeError, OverflowError, KeyError, IndexError):
            self._add(node, f"is read as a {kind}, and is none", "put the value in quotes", "yaml-tag")

    def _unknown_tag(self, node: yaml.Node) -> None:
        # Neither the tag nor the value is quoted: an unquoted password may begin with `!`.
        self._add(node, "has a YAML tag (`!…`) that Ansible does not know here", "put the value in quotes", "yaml-tag")

    def _keys(self, node: yaml.MappingNode) -> None:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._add(key, "has a list or mapping as key", 'put a template in quotes: "{{ name }}"', "yaml-key")
            elif key.tag != "tag:yaml.org,2002:merge" and (other := first.setdefault(key.value, key)) is not key:
                what = f"`{key.value}` stands twice in the same mapping (first on line {line_of(other)})"
                self._add(key, what, "keep one of the two; Ansible would silently use the last", "duplicate-key")
