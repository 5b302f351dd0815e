"""Write groups as the text of hosts.yaml, in the order of the INI file and with its comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.inventory.source.yaml_text import flow_text, key_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.inventory.ini.ini_source import Entry, Section

_WIDTH = 120  # longer host lines are written as a block


def render(sections: Sequence[Section], *, source: str) -> str:
    """Return the text of hosts.yaml. Its first line names `source`."""
    lines = [f"# Imported from {source} by primus-bootstrap import."]
    top = next((section for section in sections if section.name == "all"), None)
    others = [section for section in sections if section.name != "all"]
    if top:
        lines += _comments(top.above, "")
    lines.append("all:")
    if top:
        lines += _hosts_and_variables(top, "  ")
    named = {section.name for section in others}
    children = [child for child in (top.children if top else []) if child.name not in named]
    if others or children:
        lines.append("  children:")
    for child in children:
        lines += _entry(child, "    ")
    for section in others:
        lines += _comments(section.above, "    ")
        lines.append(f"    {key_text(section.name)}:")
        lines += _hosts_and_variables(section, "      ")
        if section.children:
            lines.append("      children:")
            for child in section.children:
                lines += _entry(child, "        ")
        if not section.hosts:
            lines += _comments(section.below, "      ")
    return "\n".join(_without_extra_blank_lines(lines)) + "\n"


def _hosts_and_variables(section: Section, indent: str) -> list[str]:
    """Return the hosts and variables of a group. Comments below the group follow its hosts."""
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
    """Return the lines of a host with its variables, or of a child group."""
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


def _without_extra_blank_lines(lines: Iterable[str]) -> Iterable[str]:
    """Yield the lines without repeated blank lines and blank lines at the beginning of a block."""
    last = ""
    for line in lines:
        if line or (last and last.strip() not in ("all:", "hosts:", "vars:", "children:")):
            yield line
        last = line
