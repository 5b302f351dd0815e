"""The variables in `group_vars/` and `host_vars/` beside hosts.yaml, and the files there that Ansible would pass over in silence."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.cluster import Origin
from primus_bootstrap.inventory.source.source_map import Definition
from primus_bootstrap.inventory.source.yaml_source import read_source
from primus_bootstrap.inventory.source.yaml_values import entries, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_EXTENSIONS = ("", ".yml", ".yaml", ".json")
# Notes and leftovers of editors. Any other ending may be part of a host's name: host_vars/gpu1.example.com.
_NO_VARIABLES = (".md", ".txt", ".rst", ".bak", ".orig")


@dataclass(slots=True)
class VariableFiles:
    """What stands in the two folders.

    `paths` are the files that Ansible reads, `sealed` (path, shown name, group or host) of those whose Vault password is missing,
    `owners` where each ("group" or "host", name) has its files.
    """

    definitions: list[Definition] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sealed: list[tuple[Path, str, str]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    owners: dict[tuple[str, str], Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reader:
    base: Path
    shown_base: str
    decrypt: Callable[[bytes], bytes] | None
    found: VariableFiles

    def shown(self, path: Path) -> str:
        return os.path.normpath(os.path.join(self.shown_base, path.relative_to(self.base)))  # noqa: PTH118 - "." must vanish

    def folder(self, name: str, kind: str) -> None:
        folder = self.base / name
        if not folder.is_dir():
            if folder.exists():
                self._add(folder, 0, "is a file; Ansible passes over it", f"make it a folder: {name}/all.yml", "variable-file")
            return
        for owner, files in _by_owner(folder).items():
            read, *ignored = files
            for path in ignored:
                what = f"is never read: Ansible stops at {read.name}{'/' if read.is_dir() else ''}"
                self._add(path, 0, what, f"join it into {read.name}, or delete it", "variable-file")
            self.found.owners[kind, owner] = Origin(self.shown(read), 0)
            for path in _files(read):
                self._file(path, kind, owner)

    def _add(self, path: Path, line: int, what: str, fix: str, rule: str) -> None:
        self.found.problems.append(Problem(self.shown(path), line, what, fix, rule))

    def _file(self, path: Path, kind: str, owner: str) -> None:
        shown = self.shown(path)
        source = read_source(path, shown, decrypt=self.decrypt)
        self.found.paths.append(path)
        self.found.problems.extend(source.problems)
        if source.sealed:
            self.found.sealed.append((path, shown, owner))
        root = source.node
        if root is None or root.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(root, yaml.MappingNode):
            self._add(path, line_of(root), "holds no mapping of variables", "write `name: value` lines", "variable-file")
            return
        for key, value in entries(root):
            origin = Origin(shown, line_of(key))
            definition = Definition(str(key.value), value, origin, kind, (owner,), from_file=True, encrypted=source.encrypted)
            self.found.definitions.append(definition)


def read_variable_files(base: Path, shown_base: str, *, decrypt: Callable[[bytes], bytes] | None) -> VariableFiles:
    """Read both folders beside hosts.yaml as Ansible does; which owners exist is judged elsewhere."""
    reader = _Reader(base, shown_base, decrypt, VariableFiles())
    for name, kind in (("group_vars", "group"), ("host_vars", "host")):
        try:
            reader.folder(name, kind)
        except OSError as error:
            problem = Problem(reader.shown(base / name), 0, f"cannot be read: {error.strerror}", "make the folder readable", "unreadable")
            reader.found.problems.append(problem)
    return reader.found


def variable_paths(base: Path) -> tuple[Path, ...]:
    """Return the files of `group_vars/` and `host_vars/` below a folder that Ansible reads."""
    folders = [base / name for name in ("group_vars", "host_vars")]
    owners = [files[0] for folder in folders if folder.is_dir() for files in _by_owner(folder).values()]
    return tuple(path for owner in owners for path in _files(owner))


def _by_owner(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each group or host, the one that Ansible reads first in its list."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith("~") or path.suffix in _NO_VARIABLES:
            continue
        ending = path.suffix if path.suffix in _EXTENSIONS[1:] else ""
        owner = path.name.removesuffix(ending)
        found.setdefault(owner, []).append((_EXTENSIONS.index(ending), path))
    return {owner: [path for _, path in sorted(paths)] for owner, paths in found.items()}


def _files(path: Path) -> Iterable[Path]:
    """Return the files of one owner in the order in which they override each other, as Ansible's DataLoader finds them."""
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
    files: VariableFiles, groups: Iterable[str], hosts: Iterable[str], suggest: Callable[[str, Iterable[str]], str]
) -> list[Problem]:
    """Return a problem for every file whose group or host is not in hosts.yaml."""
    problems = []
    known = {"group": {"all", "ungrouped", *groups}, "host": set(hosts)}
    for (kind, owner), origin in files.owners.items():
        if owner in known[kind]:
            continue
        other = "host" if kind == "group" else "group"
        if owner in known[other]:
            fix = f"move the file to {other}_vars/: {owner} is a {other}"
        else:
            near = suggest(owner, sorted(known[kind]))
            fix = f"did you mean {kind} `{near}`?" if near else f"rename the file, or add the {kind} to hosts.yaml"
        problems.append(Problem(origin.file, 0, f"hosts.yaml has no {kind} `{owner}`", fix, "variable-file-owner"))
    return problems
