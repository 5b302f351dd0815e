"""The text of a hosts.yaml from groups, with the comments and the order of the file that they were read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.inventory.ini.ini_source import Entry, Section

_WIDTH = 120  # longer host lines are written as a block


def render(sections: Sequence[Section], *, source: str) -> str:
    """Return the text of hosts.yaml; `source` is named in its first line."""
    lines = [f"# Imported from {source} by primus-bootstrap import."]
    top = next((section for section in sections if section.name == "all"), None)
    others = [section for section in sections if section.name != "all"]
    if top:
        lines += _comments(top.above, "")
    lines.append("all:")
    if top:
        lines += _parts(top, "  ")
    named = {section.name for section in others}
    children = [child for child in (top.children if top else []) if child.name not in named]
    if others or children:
        lines.append("  children:")
    for child in children:
        lines += _entry(child, "    ")
    for section in others:
        lines += _comments(section.above, "    ")
        lines.append(f"    {key_text(section.name)}:")
        lines += _parts(section, "      ")
        if section.children:
            lines.append("      children:")
            for child in section.children:
                lines += _entry(child, "        ")
        if not section.hosts:
            lines += _comments(section.below, "      ")
    return "\n".join(_squeezed(lines)) + "\n"


def _parts(section: Section, indent: str) -> list[str]:
    """Return the hosts and the variables of a group; comments below it stay with its hosts."""
    lines: list[str] = []
    if section.hosts:
        lines.append(f"{indent}hosts:")
        for entry in section.hosts:
            lines += _entry(entry, f"{indent}  ")
    if section.hosts or section.name == "all":
        lines += _comments(section.below, f"{indent}  ")
    if section.variables:
        if any(entry.variables for entry in section.variables):
            lines.append(f"{indent}vars:")
        for entry in section.variables:
            lines += _comments(entry.above, f"{indent}  ")
            lines += [_line(f"{indent}  {key_text(item.name)}: {flow_text(item.value)}", entry.beside) for item in entry.variables[-1:]]
            if not entry.variables and entry.beside:
                lines.append(f"{indent}  {entry.beside}")
    return lines


def _entry(entry: Entry, indent: str) -> list[str]:
    """Return a host with its variables, or the name of a child."""
    values = {variable.name: variable.value for variable in entry.variables}
    lines = _comments(entry.above, indent)
    short = f"{indent}{key_text(entry.name)}: {flow_text(values)}" if values else f"{indent}{key_text(entry.name)}:"
    if len(short) <= _WIDTH:
        return [*lines, _line(short, entry.beside)]
    lines.append(_line(f"{indent}{key_text(entry.name)}:", entry.beside))
    return [*lines, *(f"{indent}  {key_text(name)}: {flow_text(value)}" for name, value in values.items())]


def _line(text: str, beside: str) -> str:
    return f"{text}  {beside}" if beside else text


def _comments(lines: Iterable[str], indent: str) -> list[str]:
    return [f"{indent}{line}" if line else "" for line in lines]


def _squeezed(lines: Iterable[str]) -> Iterable[str]:
    """Leave out the second of two empty lines, and those at the beginning of a block."""
    last = ""
    for line in lines:
        if line or (last and last.strip() not in ("all:", "hosts:", "vars:", "children:")):
            yield line
        last = line


def key_text(name: str) -> str:
    """Return a key, quoted where YAML would read another type."""
    return yaml.safe_dump({name: None}, allow_unicode=True, width=10**6).rpartition(": null")[0]


def flow_text(value: Any) -> str:
    """Return a value on one line, quoted where YAML would read another type."""
    text = yaml.safe_dump({"k": value}, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.strip()[len("{k: ") : -1]
