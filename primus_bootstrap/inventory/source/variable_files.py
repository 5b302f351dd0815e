"""Read the variables in `group_vars/` and `host_vars/` beside hosts.yaml, and report files that Ansible would silently ignore."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.cluster import Origin
from primus_bootstrap.inventory.source.source_map import Definition
from primus_bootstrap.inventory.source.yaml_source import read_source
from primus_bootstrap.inventory.source.yaml_values import entries, is_null, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_EXTENSIONS = ("", ".yml", ".yaml", ".json")
# Notes and editor backups. Any other suffix may be part of a host name: host_vars/gpu1.example.com.
_IGNORED_SUFFIXES = (".md", ".txt", ".rst", ".bak", ".orig")


@dataclass(frozen=True, slots=True)
class EncryptedFile:
    """A variable file under Vault that could not be decrypted. `owner` is its group or host."""

    path: Path
    display_path: str
    owner: str


@dataclass(slots=True)
class VariableFiles:
    """The content of the two folders."""

    definitions: list[Definition] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    encrypted: list[EncryptedFile] = field(default_factory=list)  # the files that need a Vault password that was not given
    paths: list[Path] = field(default_factory=list)  # the files that Ansible reads
    # The file or folder of each group and host; the key is ("group" or "host", name).
    owners: dict[tuple[str, str], Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reader:
    base: Path
    display_base: str
    decrypt: Callable[[bytes], bytes] | None
    found: VariableFiles

    def display_path(self, path: Path) -> str:
        return os.path.normpath(os.path.join(self.display_base, path.relative_to(self.base)))  # noqa: PTH118 - removes "."

    def folder(self, name: str, kind: str) -> None:
        folder = self.base / name
        if not folder.is_dir():
            if folder.exists():
                self.report(folder, 0, "is a file; Ansible ignores it", f"move it to {name}/all.yml")
            return
        for owner, files in _by_owner(folder).items():
            read, *ignored = files
            for path in ignored:
                name_read = f"{read.name}/" if read.is_dir() else read.name
                fix = f"move its content to {name_read}, or delete it"
                self.report(path, 0, f"Ansible ignores it and reads only {name_read}", fix)
            self.found.owners[kind, owner] = Origin(self.display_path(read), 0)
            for path in _files(read):
                self._file(path, kind, owner)

    def report(self, path: Path, line: int, what: str, fix: str, rule: str = "variable-file") -> None:
        self.found.problems.append(Problem(self.display_path(path), line, what, fix, rule))

    def _file(self, path: Path, kind: str, owner: str) -> None:
        display_path = self.display_path(path)
        source = read_source(path, display_path, decrypt=self.decrypt)
        self.found.paths.append(path)
        self.found.problems.extend(source.problems)
        if source.needs_password:
            self.found.encrypted.append(EncryptedFile(path, display_path, owner))
        root = source.node
        if root is None or is_null(root):
            return
        if not isinstance(root, yaml.MappingNode):
            self.report(path, line_of(root), "is not a mapping of variables", "write each variable as `name: value` on a separate line")
            return
        for key, value in entries(root):
            origin = Origin(display_path, line_of(key))
            definition = Definition(str(key.value), value, origin, kind, (owner,), from_file=True, encrypted=source.encrypted)
            self.found.definitions.append(definition)


def read_variable_files(base: Path, display_base: str, *, decrypt: Callable[[bytes], bytes] | None) -> VariableFiles:
    """Read both folders below `base`. `unknown_owner_problems` checks that the groups and hosts exist."""
    reader = _Reader(base, display_base, decrypt, VariableFiles())
    for name, kind in (("group_vars", "group"), ("host_vars", "host")):
        try:
            reader.folder(name, kind)
        except OSError as error:
            reader.report(base / name, 0, f"cannot be read: {error.strerror}", f"chmod u+rx {base / name}", "unreadable")
    return reader.found


def variable_paths(base: Path) -> tuple[Path, ...]:
    """Return the files in `group_vars/` and `host_vars/` below a folder that Ansible reads."""
    folders = [base / name for name in ("group_vars", "host_vars")]
    owners = [files[0] for folder in folders if folder.is_dir() for files in _by_owner(folder).values()]
    return tuple(path for owner in owners for path in _files(owner))


def _by_owner(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each group or host. Ansible reads only the first one."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith("~") or path.suffix in _IGNORED_SUFFIXES:
            continue
        ending = path.suffix if path.suffix in _EXTENSIONS[1:] else ""
        owner = path.name.removesuffix(ending)
        found.setdefault(owner, []).append((_EXTENSIONS.index(ending), path))
    return {owner: [path for _, path in sorted(paths)] for owner, paths in found.items()}


def _files(path: Path) -> Iterable[Path]:
    """Return the files of one group or host in Ansible's order; a later file overrides an earlier one."""
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for inner in sorted(path.iterdir()):
        if inner.name.startswith(".") or inner.name.endswith("~"):
            continue
        if inner.is_dir():
            if not inner.suffix:
                found.extend(_files(inner))
        elif inner.suffix in _EXTENSIONS:
            found.append(inner)
    return found


def unknown_owner_problems(
    files: VariableFiles, groups: Iterable[str], hosts: Iterable[str], *, suggest_group: Callable[[str], str]
) -> list[Problem]:
    """Return a problem for every file whose group or host is not in hosts.yaml.

    `suggest_group` returns the known group that a name probably means, or an empty string.
    """
    problems = []
    known = {"group": {"all", "ungrouped", *groups}, "host": set(hosts)}
    for (kind, owner), origin in files.owners.items():
        if owner in known[kind]:
            continue
        other = "host" if kind == "group" else "group"
        if owner in known[other]:
            fix = f"move the file to {other}_vars/: `{owner}` is a {other}"
        elif kind == "group" and (meant := suggest_group(owner)):
            fix = f"did you mean group `{meant}`?" + ("" if meant in known[kind] else " Rename the file, and add the group to hosts.yaml")
        else:
            near = nearest(owner, sorted(known[kind]))
            fix = f"did you mean {kind} `{near}`?" if near else f"rename the file, or add the {kind} to hosts.yaml"
        problems.append(origin.problem(f"hosts.yaml has no {kind} `{owner}`", fix, "variable-file-owner"))
    return problems
