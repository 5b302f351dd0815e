"""An INI inventory becomes hosts.yaml: today's names, no plain-text secrets, and a line for everything that was changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ansible.groups import load_groups
from primus_bootstrap.inventory.ini.hosts_yaml_text import render
from primus_bootstrap.inventory.ini.ini_source import Entry, Section, Variable, read_ini
from primus_bootstrap.inventory.schema.names import OWN_PREFIX, is_known_variable, known_variables
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NAMES = Path(__file__).parents[1] / "data" / "ini_names.yml"
_SECRET = re.compile(r"(^|_)(password|passwd|pass|passphrase|secret|token)$")
_TEMPLATE = re.compile(r"\{\{|\{%")


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Something that is not as it was; `line` is the INI file's, 0 where no single line is meant."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The text of the new hosts.yaml and what was changed on the way, in the order of the old file."""

    text: str
    changes: tuple[Change, ...]


def import_ini(path: Path) -> Imported:
    """Read an INI inventory and return it as hosts.yaml; writes nothing.

    Raises:
        InventoryError: Ansible cannot read the file as INI.
    """
    work = _Import(read_ini(path))
    work.rename_groups()
    work.leave_secrets_behind()
    work.rename_variables()
    work.settle_values()
    work.merge_repeated_lines()
    work.note_what_is_missing(path.parent)
    return Imported(render(tuple(work.groups.values()), source=path.name), tuple(sorted(set(work.changes), key=_place)))


def write_import(imported: Imported, target: Path) -> None:
    """Write the new file, but never over another one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as stream:
            stream.write(imported.text)
    except FileExistsError as error:
        raise PlanError(f"{target} exists already", fix="name another file with --output, or move that one away") from error
    except OSError as error:
        raise PlanError(f"{target} cannot be written: {error.strerror}", fix="name another place with --output") from error


def _place(change: Change) -> tuple[bool, int, str]:
    return (change.line == 0, change.line, change.what)


class _Import:
    """The groups of one file on their way to today's names."""

    def __init__(self, sections: Iterable[Section]) -> None:
        data = yaml.safe_load(_NAMES.read_text(encoding="utf-8"))
        self._old_groups: Mapping[str, str] = data["groups"]
        self._old_variables: Mapping[str, str] = data["variables"]
        self.groups = {section.name: section for section in sections}
        self.changes: list[Change] = []
        self._renamed: dict[str, str] = {}

    def _say(self, line: int, what: str) -> None:
        self.changes.append(Change(line, what))

    def rename_groups(self) -> None:
        """Give groups today's names; two that become one are merged, and none stays its own child."""
        merged: dict[str, Section] = {}
        for section in self.groups.values():
            name = self._group_name(section.name)
            if name != section.name:
                self._renamed[section.name] = name
                self._say(section.line, f"group {section.name} is now {name}")
            kept = merged.setdefault(name, section)
            if kept is not section:
                self._say(section.line, f"group {section.name} is merged into {name}")
                for kind in ("hosts", "children", "vars"):
                    kept.part(kind).extend(section.part(kind))
                kept.below.extend([*section.above, *section.below])
            kept.name = name
        for section in merged.values():
            for child in section.children:
                child.name = self._group_name(child.name)
            section.children = [child for child in section.children if child.name != section.name]
        self.groups = merged

    def _group_name(self, old: str) -> str:
        return self._old_groups.get(old) or re.sub(r"\W", "_", old)

    def leave_secrets_behind(self) -> None:
        """Leave plain-text secrets out of the new file, with a comment in their place; the old file keeps them."""
        for section, entry, variable in list(self._variables()):
            if not _is_secret(variable):
                continue
            name = self._old_variables.get(variable.name, variable.name)
            entry.variables.remove(variable)
            entry.beside = f"{entry.beside}  # {name}: a secret, not copied".strip()
            place = f"host_vars/{entry.name}" if entry in section.hosts else f"group_vars/{section.name}"
            fix = f"write `{name}: ...` with `ansible-vault create {place}/vault.yml`"
            ask = {"ansible_password": ", or use an SSH key", "ansible_become_password": ", or apply with --ask-become-pass"}
            self._say(variable.line, f"{variable.name} is a secret in plain text and was not copied: {fix}{ask.get(name, '')}")

    def rename_variables(self) -> None:
        """Give variables today's names; one that nothing knows becomes a variable of the site, unless it looks misspelt."""
        lines: dict[str, list[int]] = {}
        for _section, _entry, variable in self._variables():
            lines.setdefault(variable.name, []).append(variable.line)
        for old, places in lines.items():
            if is_known_variable(old) and old not in self._old_variables:
                continue
            near = nearest(old, known_variables(), cutoff=0.9)
            count = f", on {len(places)} lines" if len(places) > 1 else ""
            if old in self._old_variables:
                self._renamed[old] = self._old_variables[old]
                self._say(places[0], f"variable {old} is now {self._renamed[old]}{count}")
            elif near:
                self._say(places[0], f"variable {old} is kept{count}, but nothing knows it: is {near} meant?")
            else:
                self._renamed[old] = f"{OWN_PREFIX}{re.sub(r'[^A-Za-z0-9_]', '_', old)}"
                self._say(
                    places[0], f"variable {old} is now {self._renamed[old]}{count}: no role, Kubespray or Ansible setting has that name"
                )
        for _section, entry, variable in self._variables():
            if entry.name == variable.name:
                entry.name = self._renamed.get(entry.name, entry.name)
            variable.name = self._renamed.get(variable.name, variable.name)

    def settle_values(self) -> None:
        """Write values as YAML means them, and follow renames inside templates."""
        for _section, _entry, variable in self._variables():
            variable.value = self._value(variable)

    def _value(self, variable: Variable) -> Any:
        value, raw = variable.value, variable.raw
        if isinstance(value, float) and str(value) != raw:
            self._say(variable.line, f"{variable.name}={raw}: Ansible read the number {value}; now the text '{raw}'")
            return raw
        if isinstance(value, str) and value.lower() in ("true", "false"):
            self._say(variable.line, f"{variable.name}={raw}: Ansible read a text; now the truth value {value.lower()}")
            return value.lower() == "true"
        if variable.name == "kube_version" and isinstance(value, str) and value.startswith("v"):
            self._say(variable.line, f"kube_version={raw}: now {value[1:]} (Kubespray takes no v since v2.28)")
            return value[1:]
        return self._follow(value, variable)

    def _follow(self, value: Any, variable: Variable) -> Any:
        if isinstance(value, dict):
            return {key: self._follow(item, variable) for key, item in value.items()}
        if isinstance(value, list):
            return [self._follow(item, variable) for item in value]
        if not isinstance(value, str) or not _TEMPLATE.search(value):
            return value
        for old, new in self._renamed.items():
            followed = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, value)
            if followed != value:
                self._say(variable.line, f"the template of {variable.name} reads {new} in place of {old}")
                value = followed
        return value

    def merge_repeated_lines(self) -> None:
        """Let a host, child or variable stand once in a group; of two values the later one counts, as for Ansible."""
        for section in self.groups.values():
            for kind in ("hosts", "children", "vars"):
                entries = section.part(kind)
                kept: dict[str, Entry] = {}
                for entry in entries:
                    first = kept.setdefault(entry.name, entry)
                    if first is not entry:
                        self._say(entry.line, f"{entry.name} stood twice in {section.name} and is written once")
                        first.variables.extend(entry.variables)
                        first.above.extend(line for line in entry.above if line)
                        first.beside = f"{first.beside}  {entry.beside}".strip()
                entries[:] = kept.values()
        self._drop_overridden()

    def _drop_overridden(self) -> None:
        """Keep only the last value of a host's variable: in INI the last line wins, in YAML the group's depth would."""
        last: dict[tuple[str, str], Variable] = {}
        for section in self.groups.values():
            for entry in section.hosts:
                for variable in entry.variables:
                    held = last.get((entry.name, variable.name))
                    if held is None or held.line <= variable.line:
                        last[entry.name, variable.name] = variable
        for section in self.groups.values():
            for entry in section.hosts:
                for variable in [item for item in entry.variables if last[entry.name, item.name] is not item]:
                    entry.variables.remove(variable)
                    winner = last[entry.name, variable.name]
                    self._say(variable.line, f"{variable.name} of {entry.name} is left out here: line {winner.line} sets it again and wins")

    def note_what_is_missing(self, folder: Path) -> None:
        """Say what this program reads and the old inventory did not say."""
        if "gpu_node" not in self.groups:
            self._say(0, "there is no group gpu_node: add one with the hosts that have GPUs, or they get no driver, profile or checks")
        for old, new in self._renamed.items():
            if new not in self.groups:
                continue
            for name in (old, f"{old}.yml", f"{old}.yaml", f"{old}.json"):
                if (folder / "group_vars" / name).exists():
                    self._say(0, f"group_vars/{name} is not read any more: rename it to group_vars/{name.replace(old, new)}")
        unknown = [name for name in self.groups if name not in load_groups() and name != "all"]
        if unknown:
            self._say(0, f"kept as groups of your own, which no phase reads: {', '.join(unknown)}")

    def _variables(self) -> Iterable[tuple[Section, Entry, Variable]]:
        for section in self.groups.values():
            for entry in (*section.hosts, *section.variables):
                for variable in tuple(entry.variables):
                    yield section, entry, variable


def _is_secret(variable: Variable) -> bool:
    """Tell whether this is a secret in plain text; a template or an empty value is none."""
    value = variable.value
    if value in ("", None) or isinstance(value, bool) or (isinstance(value, str) and _TEMPLATE.search(value)):
        return False
    option = load_options().get(variable.name)
    return bool(option and option.no_log) or bool(_SECRET.search(variable.name))
