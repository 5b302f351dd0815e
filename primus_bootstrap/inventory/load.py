"""Read and judge one inventory: every problem at once, or the frozen `Cluster`. Contacts no host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ansible import view as ansible_view
from primus_bootstrap.inventory.ansible.variable_index import VariableIndex, index_definitions
from primus_bootstrap.inventory.cluster import Cluster, Host, Origin, state_dir_of
from primus_bootstrap.inventory.rules import all_rules
from primus_bootstrap.inventory.rules import hosts as host_rules
from primus_bootstrap.inventory.rules.context import ValidationContext
from primus_bootstrap.inventory.schema import definition_checks, required
from primus_bootstrap.inventory.snapshot import file_sums, source_of
from primus_bootstrap.inventory.source.source_map import SourceMap, read_positions
from primus_bootstrap.inventory.source.variable_files import VariableFiles, read_variable_files, unknown_owner_problems
from primus_bootstrap.inventory.source.vault import Vault, open_vault
from primus_bootstrap.inventory.source.yaml_source import read_source
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from primus_bootstrap.inventory.source.source_map import Definition

_FILE_NAME = "hosts.yaml"
_CLUSTER_NAME = "cluster_name"
# What is wrong with these does not keep the rest from making sense.
_FILE_RULES = frozenset({"variable-file"})
_EXTENSIONS = ("", ".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Validation:
    """What one look at an inventory found. `cluster` is None where there are problems; `variables` is how many names are set."""

    problems: tuple[Problem, ...]
    deferred: tuple[definition_checks.Deferred, ...]
    cluster: Cluster | None
    variables: int = 0


def load_cluster(path: Path, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None) -> Cluster:
    """Return the cluster that hosts.yaml, or the folder that holds it, describes.

    Args:
        path: hosts.yaml or its folder; problems show files as seen from here.
        vault_password_file: A file with the Vault password, or a script that prints it.
        ask_vault_pass: The Vault password itself, as the user typed it.

    Raises:
        InventoryError: with every problem found.
    """
    result = validate(path, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    if result.cluster is None:
        raise InventoryError(result.problems)
    return result.cluster


def find_problems(path: Path, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None) -> tuple[Problem, ...]:
    """Return every problem of an inventory, sorted by place; empty where there is none."""
    return validate(path, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass).problems


def validate(
    path: Path,
    *,
    vault_password_file: Path | None = None,
    ask_vault_pass: str | None = None,
    forgive: frozenset[str] = frozenset(),
    shown: Path | None = None,
) -> Validation:
    """Read and judge an inventory; nothing that is wrong with it is raised.

    `forgive` names rules of meaning that are not applied: `required`, for the verb that writes what is missing, and
    `variable-file-owner`, for one that takes a host out. Problems name `shown` instead of the file, for a draft of it.
    """
    ansible_view.use_our_settings()
    with ansible_view.collector_off():
        try:
            file = _find(path)
            loader = ansible_view.make_loader()
            vault = open_vault(loader, password_file=vault_password_file, password=ask_vault_pass)
            source = source_of(file)
            shown = shown or source or (path / _FILE_NAME if path.is_dir() else path)
            return _Validator(shown, source or file, file, loader, vault, forgive).run()
        except InventoryError as error:
            return Validation(error.problems, (), None)
        except OSError as error:
            problem = Problem(str(path), 0, f"cannot be read: {error.strerror}", "check the path and its permissions", "unreadable")
            return Validation((problem,), (), None)


def find_state_dir(path: Path, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None) -> Path:
    """Return the state folder of a cluster; of its files only the name is looked at, so that a verb can lock it before it reads the rest.

    Raises:
        InventoryError: hosts.yaml cannot be read as YAML; with every problem found.
    """
    ansible_view.use_our_settings()
    file = _find(path)
    vault = open_vault(ansible_view.make_loader(), password_file=vault_password_file, password=ask_vault_pass)
    decrypt = vault.decrypt if vault else None
    source = read_source(file, str(path), decrypt=decrypt)
    written = read_positions(source.node, source.shown, expand=ansible_view.expand_hosts) if source.node else SourceMap()
    definitions = (*written.definitions, *read_variable_files(file.parent, str(path.parent), decrypt=decrypt).definitions)
    named = [one.node for one in definitions if one.name == _CLUSTER_NAME and one.targets == ("all",)]
    if source.node is None or any(not host_rules.is_cluster_name(node) for node in named):
        raise InventoryError(validate(path, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass).problems)
    return state_dir_of(file, str(value_of(named[-1])) if named else file.parent.resolve().name).absolute()


def _find(path: Path) -> Path:
    """Return the absolute path of hosts.yaml."""
    file = path / _FILE_NAME if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise InventoryError([Problem(str(path), 0, f"holds no {_FILE_NAME}", _other_inventory(path), "missing-file")])
    if not file.exists():
        fix = "check the path, or write a starting folder: primus-bootstrap init"
        raise InventoryError([Problem(str(file), 0, "does not exist", fix, "missing-file")])
    if not file.is_file():
        raise InventoryError([Problem(str(file), 0, "is not a regular file", "give the hosts.yaml of the cluster", "missing-file")])
    if file.suffix == ".ini":
        raise InventoryError(
            [Problem(str(file), 0, "is an INI inventory, not YAML", f"turn it into YAML: primus-bootstrap import {file}", "ini-file")]
        )
    if file.suffix not in _EXTENSIONS:
        fix = f"rename it to {file.stem}.yaml"
        raise InventoryError(
            [Problem(str(file), 0, f"ends in {file.suffix}; Ansible reads only .yaml, .yml and .json as YAML", fix, "file-name")]
        )
    return file.absolute()


def _other_inventory(folder: Path) -> str:
    for other in sorted(folder.iterdir()):
        if other.suffix == ".ini" and other.is_file():
            return f"turn {other.name} into YAML: primus-bootstrap import {other}"
        if other.name in ("hosts.yml", "inventory.yaml", "inventory.yml"):
            return f"rename {other.name} to {_FILE_NAME}, or give the file itself"
    return "give the folder of an inventory, or write one: primus-bootstrap init"


@dataclass(slots=True)
class _Validator:
    """One validation: reads, then judges as far as what was read makes sense.

    `path` is hosts.yaml, and `read` the file that is read for it: the same, or a snapshot of it.
    """

    shown: Path
    path: Path
    read: Path
    loader: Any
    vault: Vault
    forgive: frozenset[str]

    def run(self) -> Validation:
        """Judge what is written first, and what it means only where Ansible can make sense of it."""
        decrypt = self.vault.decrypt if self.vault else None
        sums = file_sums(self.read)  # before the files are parsed: a later change of one is then noticed when the run begins
        written, problems = self._written(decrypt)
        files = read_variable_files(self.read.parent, str(self.shown.parent), decrypt=decrypt)
        definitions = (*written.definitions, *files.definitions)
        judged, deferred = definition_checks.judge_definitions(definitions, self.vault)
        deferred += [
            definition_checks.Deferred("", Origin(shown, 1), "the file is encrypted and no password was given")
            for _, shown, _ in files.sealed
        ]
        sound = not problems and not any(problem.rule not in _FILE_RULES for problem in files.problems)
        problems += [*files.problems, *judged]
        cluster = None
        if sound:
            cluster = self._meaning(written, files, definitions, problems)
            cluster = replace(cluster, sums=sums) if cluster else None
        count = len({definition.name for definition in definitions})
        return Validation(tuple(sorted(set(problems))), tuple(deferred), None if problems else cluster, count)

    def _written(self, decrypt: Callable[[bytes], bytes] | None) -> tuple[SourceMap, list[Problem]]:
        source = read_source(self.read, str(self.shown), decrypt=decrypt)
        problems = list(source.problems)
        if source.sealed:
            fix = "give the Vault password: --vault-password-file"
            problems.append(Problem(source.shown, 1, "is encrypted with Vault, and no password was given", fix, "vault-password"))
        elif source.node is None and not problems:
            problems.append(Problem(source.shown, 0, "is empty", "write a starting folder: primus-bootstrap init", "empty-file"))
        if source.node is None:
            return SourceMap(), problems
        written = read_positions(source.node, source.shown, expand=ansible_view.expand_hosts, encrypted=source.encrypted)
        return written, [*problems, *written.problems]

    def _meaning(
        self, written: SourceMap, files: VariableFiles, definitions: tuple[Definition, ...], problems: list[Problem]
    ) -> Cluster | None:
        """Let Ansible load it and apply the rules; add their problems."""
        try:
            sealed_paths = [path for path, _, _ in files.sealed]
            inventory, managers = ansible_view.open_view(self.read, self.path, self.loader, self.vault, files.paths, sealed_paths)
        except ValueError as error:
            if not problems:
                what = f"Ansible cannot load it: {error}"
                problems.append(Problem(str(self.shown), 0, what, "mend what Ansible names", "ansible"))
            return None
        groups: dict[str, tuple[str, ...]] = {
            name: tuple(host.name for host in group.get_hosts()) for name, group in inventory.groups.items()
        }
        depths = {name: (group.depth, group.priority) for name, group in inventory.groups.items()}
        merged = VariableIndex(groups, depths, index_definitions(definitions))
        sealed = tuple((owner, shown) for _, shown, owner in files.sealed)
        view = ansible_view.ManagersView(self.loader, inventory, managers, self.vault, sealed, merged.origin)
        origins = written.host_origins()
        reading = ValidationContext(str(self.shown), written, definitions, groups, origins, merged, view)
        owners = unknown_owner_problems(files, groups, origins, nearest)
        found = (*owners, *all_rules.check(reading), *required.check(reading, sealed=sealed))
        problems += [problem for problem in found if problem.rule not in self.forgive]
        return self._cluster(reading) if not problems else None

    def _cluster(self, reading: ValidationContext) -> Cluster:
        of_host: dict[str, list[str]] = {host: [] for host in reading.hosts}
        for group, hosts in reading.groups.items():
            if group not in ("all", "ungrouped"):
                for host in hosts:
                    of_host[host].append(group)
        every = tuple(Host(name, tuple(of_host[name]), reading.host_origins[name]) for name in reading.hosts)
        chosen = next(iter(reading.merged.of(_CLUSTER_NAME).values()), None)
        name = str(value_of(chosen.node)) if chosen else self.path.parent.resolve().name
        stated = {variable: tuple(one.origin for one in several) for variable, several in reading.merged.by_name.items()}
        snapshot = self.read if self.read != self.path else None
        return Cluster(name, self.path, every, reading.groups, reading.view, stated=stated, snapshot=snapshot)
