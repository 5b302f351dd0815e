"""Parse one file of an inventory into YAML nodes and report its syntax errors."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml
from yaml.constructor import ConstructorError

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.source.yaml_levels import level_fault
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
_MAX_LEVELS = 100
_DEEP_INDENT = re.compile(r"^(?: {100}|(?:[-?:] +){50})", re.MULTILINE)
_MAX_NODES = 20_000_000  # values after every alias is expanded; 12,500 hosts with twenty variables each are half a million
# The tags of mappings and lists that Ansible's YAML reader takes.
_COLLECTION_TAGS: Mapping[type, tuple[str, ...]] = {
    yaml.MappingNode: ("tag:yaml.org,2002:map", "tag:yaml.org,2002:set", "!unsafe"),
    yaml.SequenceNode: ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:omap", "tag:yaml.org,2002:pairs", "!unsafe"),
}


_Fault = tuple[int, str, str, str]  # line, what, fix and rule of a problem
_PROGRAM_FIX = "name the hosts.yaml of the cluster; dynamic inventories are not supported"
_PROGRAM: _Fault = (1, "is a program or binary data, not an inventory", _PROGRAM_FIX, "not-text")
_TOO_DEEP = (f"is nested more than {_MAX_LEVELS} levels deep", "reduce the nesting", "not-yaml")


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file.

    `node` is None if the file is empty, invalid, or encrypted without a password (`needs_password`). `encrypted` means that the
    whole file is under Vault.
    """

    display_path: str
    node: yaml.Node | None = None
    problems: tuple[Problem, ...] = ()
    encrypted: bool = False
    needs_password: bool = False


def read_source(path: Path, display_path: str, *, decrypt: Callable[[bytes], bytes] | None) -> Source:
    """Parse one file; `decrypt` decrypts a file under Vault, or raises ValueError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        problem = Problem(display_path, 0, f"cannot be read: {error.strerror}", f"chmod u+r {display_path}", "unreadable")
        return Source(display_path, problems=(problem,))
    encrypted = data.startswith(VAULT_HEADER)
    if encrypted:
        if decrypt is None:
            return Source(display_path, encrypted=True, needs_password=True)
        try:
            data = decrypt(data)
        except ValueError as error:
            fix = "--vault-password-file FILE, with the right password"
            problem = Problem(display_path, 1, f"cannot be decrypted: {error}", fix, "vault-password")
            return Source(display_path, problems=(problem,), encrypted=True)
    node, faults = _parse(data, display_path)
    return Source(display_path, node, tuple(Problem(display_path, *fault) for fault in faults), encrypted)


def _parse(data: bytes, display_path: str) -> tuple[yaml.Node | None, list[_Fault]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return None, [_not_text(data, data.count(b"\n", 0, error.start) + 1)]
    if "\0" in text:
        return None, [_not_text(data, _line_at(text, text.index("\0")))]
    try:
        node = _compose(text)
    except (yaml.YAMLError, RecursionError) as error:
        return None, [_not_yaml(text, display_path, error)]
    if node is None:
        return None, []
    if not isinstance(node, yaml.MappingNode) and _looks_like_ini(text):
        return None, [_ini_file(text, display_path)]
    faults = _Check().tree(node)
    invalid = any(rule != "duplicate-key" for _, _, _, rule in faults)
    return None if invalid else node, faults


def _line_at(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _compose(text: str) -> yaml.Node | None:
    """Return the root node.

    Raises:
        RecursionError: The nesting is so deep that libyaml's stack would overflow.
    """
    if _may_be_deep(text) and _is_deep(text):
        raise RecursionError
    # JSON allows tabs between tokens, YAML does not. JSON strings cannot contain a raw tab.
    return yaml.compose(text.replace("\t", " ") if _is_json(text) else text, Loader=yaml.CSafeLoader)


def _may_be_deep(text: str) -> bool:
    """Return whether the nesting must be counted exactly. This quick check also counts brackets in strings and comments."""
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_LEVELS:
            return True
    return bool(_DEEP_INDENT.search(text))


def _is_deep(text: str) -> bool:
    """Count the nesting without recursion."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_LEVELS:
                return True
    except yaml.YAMLError:
        pass  # `_compose` reports the error
    return False


def _is_json(text: str) -> bool:
    if "\t" not in text or not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _not_text(data: bytes, line: int) -> _Fault:
    if data.startswith((b"#!", b"\x7fELF")) or b"\0" in data[:1024]:
        return _PROGRAM
    return line, "is not UTF-8 text", "save the file as UTF-8", "not-text"


def _looks_like_ini(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    if not lines or lines[0].startswith(("---", "{")):
        return False
    return bool(_INI_SECTION.match(lines[0]) or _INI_HOST.match(lines[0]) or (":" not in lines[0] and _INI_SECTION.search(text)))


def _ini_file(text: str, display_path: str) -> _Fault:
    lines = enumerate(text.splitlines(), 1)
    first = next((number for number, line in lines if line.strip() and not line.lstrip().startswith(("#", ";"))), 1)
    return first, "is an INI inventory, not YAML", f"convert it to YAML: primus-bootstrap import {display_path}", "ini-file"


def _not_yaml(text: str, display_path: str, error: Exception) -> _Fault:
    """Return the fault for a syntax error: our own message for the common ones, else libyaml's."""
    if text.startswith("#!"):
        return _PROGRAM
    if _looks_like_ini(text):
        return _ini_file(text, display_path)
    if isinstance(error, yaml.MarkedYAMLError):
        return _syntax(text, error)
    if isinstance(error, RecursionError):
        return 0, *_TOO_DEEP
    control = _UNPRINTABLE.search(text)
    line = _line_at(text, control.start()) if control else 0
    return line, "is not YAML: it contains a control character", "remove the control character", "not-yaml"


def _syntax(text: str, error: yaml.MarkedYAMLError) -> _Fault:
    reason = error.problem or "cannot be parsed"
    # libyaml notices a missing colon on a later line; the context is the line of the key.
    mark = (error.context_mark if "expected ':'" in reason else None) or error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    if tab := _TAB_INDENT.search(text):
        what = "is indented with a tab; YAML allows only spaces"
        return _line_at(text, tab.end()), what, "replace the tab with spaces", "tab"
    if _WRONG_LEVEL in reason and (fault := level_fault(text.splitlines(), line)):
        return *fault, "indentation"
    for words, what, fix, rule in _SYNTAX:
        if words in reason:
            return line, what, fix, rule
    return line, f"is not YAML: {reason}", "correct the line, or put the value in quotes", "not-yaml"


_WRONG_LEVEL = "did not find expected key"
# Part of libyaml's message, our message, fix, rule (https://github.com/yaml/libyaml/blob/0.2.5/src/parser.c and scanner.c).
_SYNTAX = (
    (_WRONG_LEVEL, "has a different indentation from the lines above",
     "indent the line like the other entries of its level", "indentation"),
    ("did not find expected '-' indicator", "is not part of the list above",
     "begin the line with `- `, indented like the other entries of the list", "indentation"),
    ("mapping values are not allowed", "has a `:` where YAML does not allow one",
     "check the indentation of this line and the one above, or put the value in quotes", "indentation"),
    ("could not find expected ':'", "has no `:` after its key",
     "end the key with `:` (a host without variables is `gpu1:`)", "missing-colon"),
    ("but found another document", "begins a second YAML document",
     "delete the `---` line", "not-yaml"),
    ("found undefined alias", "uses an alias (`*name`) without an anchor (`&name`)",
     "put the value in quotes, or define the anchor", "not-yaml"),
    ("found unexpected end of stream", "has a quote or bracket that is not closed",
     "add the closing quote or bracket", "not-yaml"),
)  # fmt: skip


@dataclass(slots=True)
class _Check:
    """Walks over every node and reports duplicate keys, unknown tags, and aliases that contain themselves or expand too far."""

    sizes: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    faults: list[_Fault] = field(default_factory=list)

    def tree(self, root: yaml.Node) -> list[_Fault]:
        try:
            size = self._walk(root)
        except RecursionError:
            self._add(root, *_TOO_DEEP)
            return self.faults
        if size > _MAX_NODES:
            self._add(
                root,
                f"its aliases expand to {size} values, at most {_MAX_NODES} are allowed",
                "write some of the values without aliases",
                "not-yaml",
            )
        return self.faults

    def _add(self, node: yaml.Node, what: str, fix: str, rule: str) -> None:
        self.faults.append((line_of(node), what, fix, rule))

    def _walk(self, node: yaml.Node) -> int:
        if (counted := self.sizes.get(id(node))) is not None:
            return counted
        if id(node) in self.open:
            self._add(node, "contains an alias to itself", "replace the alias with the value", "not-yaml")
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
            self._add(node, f"is not a valid {kind}, but YAML reads it as one", "put the value in quotes", "yaml-tag")

    def _unknown_tag(self, node: yaml.Node) -> None:
        # The message shows neither tag nor value: a password without quotes may begin with `!`.
        self._add(node, "has a YAML tag (`!…`) that Ansible does not accept here", "put the value in quotes", "yaml-tag")

    def _keys(self, node: yaml.MappingNode) -> None:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._add(key, "has a list or mapping as a key", 'put a template in quotes: "{{ name }}"', "yaml-key")
            elif key.tag != "tag:yaml.org,2002:merge" and (other := first.setdefault(key.value, key)) is not key:
                what = f"`{key.value}` is set twice in the same mapping (first on line {line_of(other)})"
                self._add(key, what, "delete one of the two; Ansible would silently use the last", "duplicate-key")
