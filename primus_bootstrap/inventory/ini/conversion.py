"""Convert an INI inventory to hosts.yaml: rename old groups and variables, leave out secrets, and record every change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError, Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ini.hosts_yaml_text import render
from primus_bootstrap.inventory.ini.ini_source import Entry, Section, Variable, read_ini
from primus_bootstrap.inventory.schema.groups import load_earlier_variables, load_groups, load_old_names
from primus_bootstrap.inventory.schema.names import is_known_variable, known_variables, own_name
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SECRET = re.compile(r"(^|_)(password|passwd|pass|passphrase|secret|token)$")
_TEMPLATE = re.compile(r"\{\{|\{%")


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One change. `line` is the line in the INI file; 0 means the whole file."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The text of the new hosts.yaml, the changes in the order of the INI file, and what the user must correct in other files."""

    text: str
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]


def import_ini(path: Path) -> Imported:
    """Convert an INI inventory. Writes nothing.

    Raises:
        InventoryError: Ansible cannot read the file as INI.
    """
    conversion = _Conversion(read_ini(path))
    conversion.rename_groups()
    conversion.remove_secrets()
    conversion.rename_variables()
    conversion.convert_values()
    conversion.merge_duplicate_entries()
    conversion.record_missing_parts(path.parent)
    text = render(tuple(conversion.groups.values()), source=path.name)
    return Imported(text, tuple(sorted(set(conversion.changes), key=_sort_key)), tuple(conversion.problems))


def write_import(imported: Imported, target: Path) -> None:
    """Write the new file.

    Raises:
        PlanError: The file exists, or cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as stream:
            stream.write(imported.text)
    except FileExistsError as error:
        raise PlanError(f"{target} exists", fix=f"choose another file with --output, or: mv {target} {target}.old") from error
    except OSError as error:
        raise PlanError(f"{target} cannot be written: {error.strerror}", fix="choose another path: --output FILE") from error


def _sort_key(change: Change) -> tuple[bool, int, str]:
    return (change.line == 0, change.line, change.what)


class _Conversion:
    """The conversion of one file."""

    def __init__(self, sections: Iterable[Section]) -> None:
        self._old_groups = load_old_names()["groups"]
        self._old_variables = {**load_earlier_variables()["renamed"], **load_old_names()["variables"]}
        self.groups = {section.name: section for section in sections}
        self.changes: list[Change] = []
        self.problems: list[Problem] = []
        self._renamed: dict[str, str] = {}

    def _record(self, line: int, what: str) -> None:
        self.changes.append(Change(line, what))

    def rename_groups(self) -> None:
        """Rename old groups. Groups with the same new name are merged, and a group is never its own child."""
        merged: dict[str, Section] = {}
        for section in self.groups.values():
            name = self._group_name(section.name)
            if name != section.name:
                self._renamed[section.name] = name
                self._record(section.line, f"group {section.name} is now {name}")
            target = merged.setdefault(name, section)
            if target is not section:
                self._record(section.line, f"group {section.name} is merged into {name}")
                for kind in ("hosts", "children", "vars"):
                    target.part(kind).extend(section.part(kind))
                target.below.extend([*section.above, *section.below])
            target.name = name
        for section in merged.values():
            for child in section.children:
                child.name = self._group_name(child.name)
            section.children = [child for child in section.children if child.name != section.name]
        self.groups = merged

    def _group_name(self, old: str) -> str:
        return self._old_groups.get(old) or re.sub(r"\W", "_", old)

    def remove_secrets(self) -> None:
        """Replace secrets in plain text with comments."""
        for section, entry, variable in list(self._variables()):
            if not _is_secret(variable):
                continue
            name = self._old_variables.get(variable.name, variable.name)
            entry.variables.remove(variable)
            entry.beside = f"{entry.beside}  # {name}: a secret, not copied".strip()
            folder = f"host_vars/{entry.name}" if entry in section.hosts else f"group_vars/{section.name}"
            fix = f"write `{name}: ...` with `ansible-vault create {folder}/vault.yml`"
            alternatives = {"ansible_password": ", or use an SSH key", "ansible_become_password": ", or apply with --ask-become-pass"}
            self._record(variable.line, f"{variable.name} is a secret in plain text and was not copied: {fix}{alternatives.get(name, '')}")

    def rename_variables(self) -> None:
        """Rename old variables. An unknown variable gets the prefix of the user's own, unless it is similar to a known one."""
        lines: dict[str, list[int]] = {}
        for _section, _entry, variable in self._variables():
            lines.setdefault(variable.name, []).append(variable.line)
        for old, numbers in lines.items():
            if is_known_variable(old) and old not in self._old_variables:
                continue
            near = nearest(old, known_variables(), cutoff=0.9)
            count = f", on {len(numbers)} lines" if len(numbers) > 1 else ""
            if old in self._old_variables:
                self._renamed[old] = self._old_variables[old]
                self._record(numbers[0], f"variable {old} is now {self._renamed[old]}{count}")
            elif near:
                self._record(numbers[0], f"variable {old} is unknown and was kept{count}: did you mean {near}?")
            else:
                self._renamed[old] = own_name(old)
                self._record(
                    numbers[0], f"variable {old} is now {self._renamed[old]}{count}: no role, Kubespray or Ansible setting has that name"
                )
        for _section, entry, variable in self._variables():
            if entry.name == variable.name:
                entry.name = self._renamed.get(entry.name, entry.name)
            variable.name = self._renamed.get(variable.name, variable.name)

    def convert_values(self) -> None:
        """Convert values to YAML types, and rename groups and variables in templates."""
        for _section, _entry, variable in self._variables():
            variable.value = self._value(variable)

    def _value(self, variable: Variable) -> Any:
        value, raw = variable.value, variable.raw
        if isinstance(value, float) and str(value) != raw:
            self._record(variable.line, f"{variable.name}={raw}: Ansible read the number {value}; now the string '{raw}'")
            return raw
        if isinstance(value, str) and value.lower() in ("true", "false"):
            self._record(variable.line, f"{variable.name}={raw}: Ansible read a string; now the boolean {value.lower()}")
            return value.lower() == "true"
        if variable.name == "kube_version" and isinstance(value, str) and value.startswith("v"):
            self._record(variable.line, f"kube_version={raw}: now {value[1:]} (Kubespray accepts no v since v2.28)")
            return value[1:]
        return self._rename_in_templates(value, variable)

    def _rename_in_templates(self, value: Any, variable: Variable) -> Any:
        if isinstance(value, dict):
            return {key: self._rename_in_templates(item, variable) for key, item in value.items()}
        if isinstance(value, list):
            return [self._rename_in_templates(item, variable) for item in value]
        if not isinstance(value, str) or not _TEMPLATE.search(value):
            return value
        for old, new in self._renamed.items():
            renamed = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, value)
            if renamed != value:
                self._record(variable.line, f"the template of {variable.name} now uses {new} instead of {old}")
                value = renamed
        return value

    def merge_duplicate_entries(self) -> None:
        """Merge entries of the same host, child or variable in a group. The later value is effective, as for Ansible."""
        for section in self.groups.values():
            for kind in ("hosts", "children", "vars"):
                entries = section.part(kind)
                unique: dict[str, Entry] = {}
                for entry in entries:
                    first = unique.setdefault(entry.name, entry)
                    if first is not entry:
                        self._record(entry.line, f"{entry.name} is twice in {section.name}; the two entries are merged")
                        first.variables.extend(entry.variables)
                        first.above.extend(line for line in entry.above if line)
                        first.beside = f"{first.beside}  {entry.beside}".strip()
                entries[:] = unique.values()
        self._remove_overridden()

    def _remove_overridden(self) -> None:
        """Remove all but the last value of a host variable. INI uses the last line; YAML would use the deepest group."""
        last: dict[tuple[str, str], Variable] = {}
        for section in self.groups.values():
            for entry in section.hosts:
                for variable in entry.variables:
                    previous = last.get((entry.name, variable.name))
                    if previous is None or previous.line <= variable.line:
                        last[entry.name, variable.name] = variable
        for section in self.groups.values():
            for entry in section.hosts:
                for variable in [item for item in entry.variables if last[entry.name, item.name] is not item]:
                    entry.variables.remove(variable)
                    line = last[entry.name, variable.name].line
                    self._record(variable.line, f"{variable.name} of {entry.name} is not copied from this line: line {line} overrides it")

    def record_missing_parts(self, folder: Path) -> None:
        """Record what the user must still add or rename."""
        if "gpu_node" not in self.groups:
            self._record(0, "there is no group gpu_node: add one with the hosts that have GPUs, or they get no driver, profile or checks")
        for old, new in self._renamed.items():
            if new not in self.groups:
                continue
            for name in (old, f"{old}.yml", f"{old}.yaml", f"{old}.json"):
                if (folder / "group_vars" / name).exists():
                    self._record(0, f"group_vars/{name} is no longer read: rename it to group_vars/{name.replace(old, new)}")
        self._record_old_names_in(folder)
        unknown = [name for name in self.groups if name not in load_groups() and name != "all"]
        if unknown:
            self._record(0, f"kept as groups of your own, which no role uses: {', '.join(unknown)}")

    def _record_old_names_in(self, folder: Path) -> None:
        """Record the lines of group_vars and host_vars that still use the old name of a variable, which is now undefined."""
        old_variables = [name for name in self._renamed if name not in self._old_groups and name not in self.groups]
        if not old_variables:
            return
        used = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, old_variables))})(?![\w-])")
        files = [path for kind in ("group_vars", "host_vars") for path in sorted((folder / kind).rglob("*")) if path.is_file()]
        for path in files:
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
                for old in dict.fromkeys(() if line.lstrip().startswith("#") else used.findall(line)):
                    new = self._renamed[old]
                    self.problems.append(Problem(str(path), number, f"uses {old}, which is now {new}", f"rename it to {new}", "renamed"))

    def _variables(self) -> Iterable[tuple[Section, Entry, Variable]]:
        for section in self.groups.values():
            for entry in (*section.hosts, *section.variables):
                for variable in tuple(entry.variables):
                    yield section, entry, variable


def _is_secret(variable: Variable) -> bool:
    """Return whether a variable is a secret in plain text. A template or an empty value is not."""
    value = variable.value
    if value in ("", None) or isinstance(value, bool) or (isinstance(value, str) and _TEMPLATE.search(value)):
        return False
    option = load_options().get(variable.name)
    return bool(option and option.no_log) or bool(_SECRET.search(variable.name))
