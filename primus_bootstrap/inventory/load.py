"""Load and validate an inventory: return a `Cluster`, or all of its problems. Contacts no host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible import view as ansible_view
from primus_bootstrap.inventory.ansible.addresses import AddressResolver
from primus_bootstrap.inventory.ansible.variable_index import VariableIndex, index_definitions
from primus_bootstrap.inventory.cluster import Cluster, Host, Origin, state_dir_of
from primus_bootstrap.inventory.nearby import missing_file_fix
from primus_bootstrap.inventory.rules import all_rules, likely_mistakes, required
from primus_bootstrap.inventory.rules import hosts as host_rules
from primus_bootstrap.inventory.rules.context import ValidationContext
from primus_bootstrap.inventory.rules.group_membership import without_consequences
from primus_bootstrap.inventory.schema import definition_checks
from primus_bootstrap.inventory.schema.names import nearest_group
from primus_bootstrap.inventory.snapshot import file_sums, source_of
from primus_bootstrap.inventory.source.source_map import SourceMap, map_source
from primus_bootstrap.inventory.source.variable_files import VariableFiles, read_variable_files, unknown_owner_problems
from primus_bootstrap.inventory.source.vault import Vault, open_vault
from primus_bootstrap.inventory.source.yaml_source import read_source
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_bootstrap.inventory.source.source_map import Definition

_FILE_NAME = "hosts.yaml"
_CLUSTER_NAME = "cluster_name"
# The rules still run if a file has only problems of these rules.
_NON_BLOCKING_RULES = frozenset({"variable-file"})
_EXTENSIONS = ("", ".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of `validate`: problems in file order, values that only a run can check, and the number of variables.

    `cluster` is None if there are problems. `warnings` are likely mistakes of a cluster without problems.
    """

    problems: tuple[Problem, ...]
    deferred: tuple[definition_checks.Deferred, ...]
    cluster: Cluster | None
    variables: int = 0
    warnings: tuple[Problem, ...] = ()


def load_cluster(path: Path, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None) -> Cluster:
    """Return the cluster that an inventory describes; the arguments are those of `validate`.

    Raises:
        InventoryError: With all problems.
    """
    result = validate(path, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass)
    if result.cluster is None:
        raise InventoryError(result.problems)
    return result.cluster


def find_problems(path: Path, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None) -> tuple[Problem, ...]:
    """Return all problems of an inventory, sorted by position."""
    return validate(path, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass).problems


def validate(
    path: Path,
    *,
    vault_password_file: Path | None = None,
    ask_vault_pass: str | None = None,
    ignore_rules: frozenset[str] = frozenset(),
    display_path: Path | None = None,
) -> Validation:
    """Load and validate an inventory. Problems are returned, not raised.

    Args:
        path: hosts.yaml or its folder.
        vault_password_file: A file that contains the Vault password, or a script that prints it.
        ask_vault_pass: The Vault password, as the user typed it.
        ignore_rules: Rules whose problems are left out, for example `required` in the verb that adds missing secrets.
        display_path: The path that problems show in place of `path`, for a draft.
    """
    ansible_view.use_shipped_settings()
    with ansible_view.garbage_collection_off():
        try:
            file = _find_hosts_file(path)
            loader = ansible_view.make_loader()
            vault = open_vault(loader, password_file=vault_password_file, password=ask_vault_pass)
            source = source_of(file)
            display_path = display_path or source or (path / _FILE_NAME if path.is_dir() else path)
            return _Validator(display_path, source or file, file, loader, vault, ignore_rules).run()
        except InventoryError as error:
            return Validation(error.problems, (), None)
        except OSError as error:
            problem = Problem(str(path), 0, f"cannot be read: {error.strerror}", "check the path and its permissions", "unreadable")
            return Validation((problem,), (), None)


def find_state_dir(path: Path, *, vault_password_file: Path | None = None, ask_vault_pass: str | None = None) -> Path:
    """Return the state folder of a cluster. Reads only the cluster's name, so that a verb can take the lock before it loads the rest.

    Raises:
        InventoryError: hosts.yaml cannot be parsed; with all problems.
    """
    ansible_view.use_shipped_settings()
    file = _find_hosts_file(path)
    vault = open_vault(ansible_view.make_loader(), password_file=vault_password_file, password=ask_vault_pass)
    decrypt = vault.decrypt if vault else None
    source = read_source(file, str(path), decrypt=decrypt)
    source_map = map_source(source.node, source.display_path, expand=ansible_view.expand_hosts) if source.node else SourceMap()
    definitions = (*source_map.definitions, *read_variable_files(file.parent, str(path.parent), decrypt=decrypt).definitions)
    names = [one.node for one in definitions if one.name == _CLUSTER_NAME and one.targets == ("all",)]
    if source.node is None or any(not host_rules.is_cluster_name(node) for node in names):
        raise InventoryError(validate(path, vault_password_file=vault_password_file, ask_vault_pass=ask_vault_pass).problems)
    return state_dir_of(file, str(value_of(names[-1])) if names else file.parent.resolve().name).absolute()


def _find_hosts_file(path: Path) -> Path:
    """Return the absolute path of hosts.yaml.

    Raises:
        InventoryError: There is no such file, or its name is wrong.
    """
    file = path / _FILE_NAME if path.is_dir() else path
    if path.is_dir() and not file.exists():
        problem = Problem(str(path), 0, f"contains no {_FILE_NAME}", _other_name_fix(path), "missing-file")
    elif not file.exists():
        problem = Problem(str(file), 0, "does not exist", missing_file_fix(Path()), "missing-file")
    elif not file.is_file():
        problem = Problem(str(file), 0, "is not a regular file", "name the hosts.yaml of the cluster", "missing-file")
    elif file.suffix == ".ini":
        fix = f"convert it to YAML: primus-bootstrap import {file}"
        problem = Problem(str(file), 0, "is an INI inventory, not YAML", fix, "ini-file")
    elif file.suffix not in _EXTENSIONS:
        what = f"has the extension {file.suffix}; Ansible reads YAML only from .yaml, .yml and .json"
        problem = Problem(str(file), 0, what, f"mv {file} {file.with_suffix('.yaml')}", "file-name")
    else:
        return file.absolute()
    raise InventoryError([problem])


def _other_name_fix(folder: Path) -> str:
    for other in sorted(folder.iterdir()):
        if other.suffix == ".ini" and other.is_file():
            return f"convert {other.name} to YAML: primus-bootstrap import {other}"
        if other.name in ("hosts.yml", "inventory.yaml", "inventory.yml"):
            return f"mv {other} {folder / _FILE_NAME}"
    return missing_file_fix(Path())


@dataclass(slots=True)
class _Validator:
    """One validation of `path`. `read_path` is the file that is read for it: the same one, or a snapshot of it."""

    display_path: Path
    path: Path
    read_path: Path
    loader: Any
    vault: Vault
    ignore_rules: frozenset[str]
    warnings: list[Problem] = field(default_factory=list)

    def run(self) -> Validation:
        """Check syntax and values. If the files can be parsed, load them with Ansible and apply the rules."""
        decrypt = self.vault.decrypt if self.vault else None
        sums = file_sums(self.read_path)  # before the files are parsed, so that a run notices any later change
        source_map, problems = self._map_hosts_file(decrypt)
        files = read_variable_files(self.read_path.parent, str(self.display_path.parent), decrypt=decrypt)
        definitions = (*source_map.definitions, *files.definitions)
        value_problems, deferred = definition_checks.check_definitions(definitions, self.vault)
        deferred += [
            definition_checks.Deferred("", Origin(file.display_path, 1), "the file is encrypted and no password was given")
            for file in files.encrypted
        ]
        loadable = not problems and all(problem.rule in _NON_BLOCKING_RULES for problem in files.problems)
        problems += [*files.problems, *value_problems]
        cluster = None
        if loadable:
            cluster = self._load_and_apply_rules(source_map, files, definitions, problems)
            cluster = replace(cluster, sums=sums) if cluster else None
        count = len({definition.name for definition in definitions})
        return Validation(tuple(sorted(set(problems))), tuple(deferred), None if problems else cluster, count, tuple(self.warnings))

    def _map_hosts_file(self, decrypt: Callable[[bytes], bytes] | None) -> tuple[SourceMap, list[Problem]]:
        source = read_source(self.read_path, str(self.display_path), decrypt=decrypt)
        problems = list(source.problems)
        if source.needs_password:
            fix = "--vault-password-file FILE or --ask-vault-pass"
            problems.append(Problem(source.display_path, 1, "is encrypted with Vault, and no password was given", fix, "vault-password"))
        elif source.node is None and not problems:
            fix = "create a new inventory: primus-bootstrap init FOLDER"
            problems.append(Problem(source.display_path, 0, "is empty", fix, "empty-file"))
        if source.node is None:
            return SourceMap(), problems
        source_map = map_source(
            source.node,
            source.display_path,
            expand=ansible_view.expand_hosts,
            encrypted=source.encrypted,
            suggest_group=nearest_group,
        )
        return source_map, [*problems, *source_map.problems]

    def _load_and_apply_rules(
        self, source_map: SourceMap, files: VariableFiles, definitions: tuple[Definition, ...], problems: list[Problem]
    ) -> Cluster | None:
        """Load the inventory with Ansible and apply the rules. Adds to `problems`; returns None if there are any."""
        try:
            encrypted = [file.path for file in files.encrypted]
            inventory, variable_manager = ansible_view.open_view(self.read_path, self.path, self.loader, self.vault, files.paths, encrypted)
        except ValueError as error:
            if not problems:
                what = f"Ansible cannot load it: {error}"
                problems.append(Problem(str(self.display_path), 0, what, "correct the line that Ansible names", "ansible"))
            return None
        groups: dict[str, tuple[str, ...]] = {
            name: tuple(host.name for host in group.get_hosts()) for name, group in inventory.groups.items()
        }
        depths = {name: (group.depth, group.priority) for name, group in inventory.groups.items()}
        host_origins = source_map.host_origins()
        # The host of a file in host_vars/ may be missing in hosts.yaml; `unknown_owner_problems` reports the file.
        effective = [one for one in definitions if one.kind == "group" or one.targets[0] in host_origins]
        variable_index = VariableIndex(groups, depths, index_definitions(effective))
        view = ansible_view.ManagersView(
            self.loader, inventory, variable_manager, self.vault, tuple(files.encrypted), variable_index.origin
        )
        resolver = AddressResolver(variable_index, view)
        context = ValidationContext(str(self.display_path), source_map, groups, host_origins, variable_index, view, resolver)
        found = (
            *unknown_owner_problems(files, groups, host_origins, suggest_group=nearest_group),
            *all_rules.check(context),
            *required.check(context, encrypted_owners=[file.owner for file in files.encrypted]),
        )
        problems += [problem for problem in without_consequences(context, found) if problem.rule not in self.ignore_rules]
        if problems:
            return None
        self.warnings = likely_mistakes.find_warnings(context, self.path.parent)
        return self._cluster(context, tuple(file.display_path for file in files.encrypted))

    def _cluster(self, context: ValidationContext, encrypted: tuple[str, ...]) -> Cluster:
        groups_of: dict[str, list[str]] = {host: [] for host in context.hosts}
        for group, members in context.groups.items():
            if group not in ("all", "ungrouped"):
                for host in members:
                    groups_of[host].append(group)
        hosts = tuple(Host(name, tuple(groups_of[name]), context.host_origins[name]) for name in context.hosts)
        definition = next(iter(context.variable_index.by_host(_CLUSTER_NAME).values()), None)
        name = str(value_of(definition.node)) if definition else self.path.parent.resolve().name
        variable_origins = {variable: tuple(one.origin for one in several) for variable, several in context.variable_index.by_name.items()}
        snapshot = self.read_path if self.read_path != self.path else None
        return Cluster(
            name,
            self.path,
            hosts,
            context.groups,
            context.view,
            variable_origins=variable_origins,
            encrypted_files=encrypted,
            snapshot=snapshot,
        )
