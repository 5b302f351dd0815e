"""Add, remove or change an entry in the text of a YAML mapping, without changing any other byte. Lines must end with LF."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.inventory.source.yaml_text import flow_text, key_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Holder = tuple[yaml.Node, yaml.Node]  # a key and its value

_STEP = 2


@dataclass(frozen=True, slots=True)
class Splice:
    """Replaces the characters from `start` up to `end` with `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """The variables of a host. If `block`, each is written on a separate line in block style."""

    values: Mapping[str, Any]
    block: bool = False


Body = Leaf | dict[str, Any] | None  # the value of a new key: variables, sections, or nothing


def splice(text: str, changes: Iterable[Splice]) -> str:
    """Apply changes that do not overlap."""
    for change in sorted(changes, key=lambda one: one.start, reverse=True):
        text = text[: change.start] + change.text + text[change.end :]
    return text


def add_entry(text: str, holder: Holder, name: str, body: Body) -> Splice:
    """Add `name: body` as the last entry of a key's mapping, which may be empty or missing."""
    key, value = holder
    if isinstance(value, yaml.MappingNode) and value.value:
        return add_to(text, value, name, body)
    written = text[value.start_mark.index : value.end_mark.index]
    if written and value.start_mark.index >= key.end_mark.index:  # `{}`, `null` or `~`
        return Splice(value.start_mark.index, value.end_mark.index, f"{{{_flow(name, body)}}}")
    indent = " " * (key.start_mark.column + _STEP)
    return _below(text, key.end_mark.index, [f"{indent}{line}" for line in _block(name, body)])


def add_to(text: str, mapping: yaml.MappingNode, name: str, body: Body) -> Splice:
    """Add `name: body` as the last entry of a mapping that is not empty."""
    key, value = mapping.value[-1]
    end = _end(text, key, value)
    if not mapping.flow_style:
        indent = " " * mapping.value[0][0].start_mark.column
        return _below(text, end, [f"{indent}{line}" for line in _block(name, body)])
    quoted = text[key.start_mark.index] == '"'
    own_line = key.start_mark.line > mapping.start_mark.line
    gap = f"\n{' ' * key.start_mark.column}" if own_line else " "
    return Splice(end, end, f",{gap}{_flow(name, body, quoted=quoted)}")


def remove_entry(text: str, mapping: yaml.MappingNode, name: str) -> Splice:
    """Remove an entry and the comment on its line. Comments above it stay."""
    names = [key.value for key, _ in mapping.value]
    at = names.index(name)
    key, value = mapping.value[at]
    start, end = key.start_mark.index, _end(text, key, value)
    if not mapping.flow_style:
        start, end = text.rfind("\n", 0, start) + 1, _line_end(text, end)
        return Splice(start, end + 1, "") if end < len(text) else Splice(max(start - 1, 0), end, "")
    if at + 1 < len(names):
        return Splice(start, mapping.value[at + 1][0].start_mark.index, "")
    return Splice(_end(text, *mapping.value[at - 1]) if at else start, end, "")


def replace_key(text: str, mapping: yaml.MappingNode, name: str, names: Sequence[str]) -> Splice:
    """Replace an entry with several that have the same value. The first one keeps the comment on its line."""
    key, value = next((key, value) for key, value in mapping.value if key.value == name)
    start, end = key.start_mark.index, _end(text, key, value)
    quote = text[start] if text[start] in "\"'" else ""
    rest = text[key.end_mark.index : end]
    first, *others = [f"{quote}{new}{quote}{rest}" for new in names]
    if mapping.flow_style:
        return Splice(start, end, ", ".join([first, *others]))
    line_end = _line_end(text, end)
    beside, indent = text[end:line_end], " " * key.start_mark.column
    return Splice(start, line_end, "\n".join([first + beside, *(f"{indent}{other}" for other in others)]))


def set_value(value: yaml.Node, new: Any) -> Splice:
    """Replace a scalar value."""
    return Splice(value.start_mark.index, value.end_mark.index, flow_text(new))


def _end(text: str, key: yaml.Node, value: yaml.Node) -> int:
    """Return the end of an entry, before the separator."""
    if value.start_mark.index < key.end_mark.index:  # the node of an alias has the position of its anchor
        return int(key.end_mark.index)
    while isinstance(value, (yaml.MappingNode, yaml.SequenceNode)) and not value.flow_style:
        last = value.value[-1]
        if not isinstance(last, tuple):
            value = last
        elif last[1].start_mark.index < last[0].end_mark.index:
            return int(last[0].end_mark.index)
        else:
            value = last[1]
    end = int(value.end_mark.index)
    if isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):  # they include the blank lines below them
        return len(text[:end].rstrip())
    return end


def _line_end(text: str, start: int) -> int:
    found = text.find("\n", start)
    return len(text) if found < 0 else found


def _below(text: str, start: int, lines: Sequence[str]) -> Splice:
    """Insert lines below the line of a position."""
    end = _line_end(text, start)
    return Splice(end, end, "".join(f"\n{line}" for line in lines))


def _block(name: str, body: Body) -> list[str]:
    """Return an entry as lines without indentation."""
    if isinstance(body, Leaf) and not body.block:
        return [f"{key_text(name)}: {flow_text(dict(body.values))}"] if body.values else [f"{key_text(name)}:"]
    if isinstance(body, Leaf):
        below = [f"{key_text(key)}: {flow_text(value)}" for key, value in body.values.items()]
    else:
        below = [line for key, value in (body or {}).items() for line in _block(key, value)]
    return [f"{key_text(name)}:", *(f"{' ' * _STEP}{line}" for line in below)]


def _flow(name: str, body: Body, *, quoted: bool = False) -> str:
    """Return an entry on one line; if `quoted`, as JSON."""
    entry = {name: _plain(body)}
    return (json.dumps(entry, ensure_ascii=False) if quoted else flow_text(entry))[1:-1]


def _plain(body: Body) -> dict[str, Any]:
    if isinstance(body, Leaf):
        return dict(body.values)
    return {key: _plain(value) for key, value in (body or {}).items()}
