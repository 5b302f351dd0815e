"""Load an inventory with Ansible's managers. No other module of the package does; a contract test checks this."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError, PlanError, Problem, UsageError
from primus_bootstrap.inventory.schema.names import is_ansible_secret
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Origin, RoleSources
    from primus_bootstrap.inventory.source.variable_files import EncryptedFile
    from primus_bootstrap.inventory.source.vault import Vault

log = logging.getLogger(__name__)


def use_shipped_settings() -> None:
    """Make Ansible use the shipped ansible.cfg, as in a run. Ansible reads its settings when it is first imported."""
    os.environ.setdefault("ANSIBLE_CONFIG", str(content.ansible_cfg()))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Write Ansible's warnings to the debug log. The rules report the same mistakes with their positions."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        yield
    if text := output.getvalue().strip():
        log.debug("ansible: %s", text)


@contextlib.contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Switch the garbage collector off while an inventory is loaded: 12,500 hosts take 3.3 s instead of 5.6 s."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def make_loader() -> Any:
    """Return Ansible's file loader."""
    from ansible.parsing.dataloader import DataLoader  # noqa: PLC0415 - Ansible takes 0.2 s to import

    return DataLoader()


def expand_hosts(pattern: str) -> list[str]:
    """Return the host names that one key under `hosts:` expands to.

    Raises:
        ValueError: The range is invalid.
    """
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.parsing.utils.addresses import parse_address  # noqa: PLC0415
    from ansible.plugins.inventory import detect_range, expand_hostname_range  # noqa: PLC0415

    try:
        name, _ = parse_address(pattern, allow_ranges=True)
    except AnsibleError:
        name = pattern
    try:
        return list(expand_hostname_range(name)) if detect_range(name) else [name]
    except AnsibleError as error:
        what = "both bounds must have the same number of digits" if "equal-length" in str(error) else str(error)
        raise ValueError(what) from error
    except ValueError as error:
        raise ValueError("its brackets or bounds do not match") from error


@dataclass(frozen=True, slots=True)
class ManagersView:
    """One inventory in Ansible's managers.

    `locate` returns where a variable of a host is set. `encrypted_files` need a Vault password that was not given.
    """

    loader: Any
    inventory: Any
    variable_manager: Any
    vault: Vault
    encrypted_files: tuple[EncryptedFile, ...]
    locate: Callable[[str, str], Origin | None]

    def select(self, pattern: str) -> tuple[str, ...]:
        """Return the hosts that match an Ansible host pattern, in inventory order.

        Raises:
            UsageError: The pattern is invalid.
        """
        from ansible.errors import AnsibleError  # noqa: PLC0415

        try:
            with quiet():
                return tuple(host.name for host in self.inventory.get_hosts(pattern) if not host.implicit)
        except AnsibleError as error:
            fix = "use the names of hosts and groups in hosts.yaml"
            raise UsageError(f"{pattern} is not a valid host pattern: {error}", fix=fix) from error

    def variables(self, host: str) -> Mapping[str, Any]:
        """Return the merged variables of one host. A template or Vault value is resolved when its variable is read.

        Raises:
            PlanError: There is no such host.
        """
        entry = self.inventory.get_host(host)
        if entry is None or entry.implicit:
            raise PlanError(f"no such host: {host}", fix="use the name of a host in hosts.yaml")
        with quiet():
            raw = self.variable_manager.get_vars(host=entry)
        return HostVariables(self, host, raw)

    def read_templates(self, path: Path) -> Any:
        """Return the content of a YAML file of this package; its strings may be templates."""
        with quiet():
            return self.loader.load_from_file(str(path), cache="all", unsafe=True, trusted_as_template=True)

    def role_scope(self, host: str, sources: RoleSources) -> Callable[[Any], Any]:
        """Return a function that resolves the templates of a role for one host, without contacting the host.

        The function raises ValueError if a template fails, for example because it uses a fact.
        """
        from ansible.errors import AnsibleError  # noqa: PLC0415
        from ansible.plugins.loader import filter_loader  # noqa: PLC0415
        from ansible.template import Templar  # noqa: PLC0415

        variables: dict[str, Any] = {}
        filter_loader.add_directory(str(content.plugins_dir() / "filter"))
        for path in sources.defaults:
            filter_loader.add_directory(str(path.parents[1] / "filter_plugins"))  # filters that the role's variables use
            variables |= self.read_templates(path) or {}
        with quiet():
            variables |= self.variable_manager.get_vars(host=self.inventory.get_host(host))
        for path in sources.overrides:
            variables |= self.read_templates(path) or {}
        templar = Templar(loader=self.loader, variables={**variables, "ansible_facts": dict(sources.facts), **sources.given})

        def resolve(value: Any) -> Any:
            try:
                with quiet(), self.vault.active():
                    return _plain(templar.template(value))
            except AnsibleError as error:
                raise ValueError(str(error).splitlines()[0]) from error

        return resolve


class HostVariables(Mapping[str, Any]):
    """The variables of one host, each resolved when it is read, so that an unused template may fail."""

    def __init__(self, view: ManagersView, host: str, raw: Mapping[str, Any]) -> None:
        """Store the unresolved variables."""
        self._view = view
        self._host = host
        self._raw = raw

    def __iter__(self) -> Iterator[str]:
        """Yield the variable names."""
        return iter(self._raw)

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(self._raw)

    def __contains__(self, name: object) -> bool:
        """Return whether a variable is set, without resolving it."""
        return name in self._raw

    def __getitem__(self, name: str) -> Any:
        """Return one variable, resolved.

        Raises:
            InventoryError: Its template fails, or it is encrypted and the password is missing or wrong.
        """
        return _resolve(self._view, self._host, name, self._raw)


def _resolve(view: ManagersView, host: str, name: str, raw: Mapping[str, Any]) -> Any:
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.template import Templar  # noqa: PLC0415

    value = raw[name]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, str) and "{" not in value:
        return str(value)
    try:
        with quiet(), view.vault.active():
            return _plain(Templar(loader=view.loader, variables=dict(raw)).template(value))
    except AnsibleError as error:
        raise InventoryError([_unresolved(view, host, name, error)]) from error


def _unresolved(view: ManagersView, host: str, name: str, error: Exception) -> Problem:
    origin = view.locate(host, name)
    file, line = (origin.file, origin.line) if origin else ("hosts.yaml", 0)
    if _is_vault_error(error):
        what = f"`{name}` of {host} is encrypted with Vault, and {'the password is wrong' if view.vault else 'no password was given'}"
        return Problem(file, line, what, "--vault-password-file FILE or --ask-vault-pass", "vault-password")
    option = load_options().get(name)
    secret = is_ansible_secret(name) or (option is not None and option.no_log)
    reason = "its template fails" if secret else str(error).splitlines()[0]  # Ansible's message may contain the value
    what = f"`{name}` of {host} cannot be resolved: {reason}"
    owners = {host, *(group.name for group in view.inventory.get_host(host).get_groups())}
    if encrypted := [file.display_path for file in view.encrypted_files if file.owner in owners]:
        fix = f"--vault-password-file FILE or --ask-vault-pass, to read {', '.join(encrypted)}"
        return Problem(file, line, what, fix, "vault-password")
    return Problem(file, line, what, f"set the variables that the template uses, for {host}", "template")


def _is_vault_error(error: BaseException | None) -> bool:
    """Return whether a Vault error is among the causes of an error. The template engine wraps it in a private class.

    A chain of causes may be circular, so each one is visited once.
    """
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if type(error).__name__ in ("AnsibleVaultError", "AnsibleVaultFormatError", "UndecryptableVaultError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _plain(value: Any) -> Any:
    """Return plain Python values without Ansible's tags."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def open_view(  # noqa: PLR0913, PLR0917 - paths, loader and passwords of one inventory
    path: Path, original: Path, loader: Any, vault: Vault, files: Iterable[Path], encrypted: Iterable[Path]
) -> tuple[Any, Any]:
    """Load hosts.yaml with Ansible's `yaml` inventory plugin; return (inventory manager, variable manager).

    Args:
        path: hosts.yaml, or a snapshot of it.
        original: hosts.yaml; the value of `inventory_file`.
        files: The variable files. They are read here because Ansible reads them later and would stop at an invalid one.
        encrypted: The variable files that cannot be decrypted. Ansible sees them as empty.

    Raises:
        ValueError: Ansible cannot load a file.
    """
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.inventory.manager import InventoryManager  # noqa: PLC0415
    from ansible.plugins.loader import inventory_loader  # noqa: PLC0415
    from ansible.vars.hostvars import HostVars  # noqa: PLC0415
    from ansible.vars.manager import VariableManager  # noqa: PLC0415

    _clear_plugin_caches()
    loader.set_basedir(str(content.playbooks_dir()))  # as in a run
    loader.set_vault_secrets(list(vault.secrets))
    real = path.parent.resolve()
    for file in encrypted:
        loader._FILE_CACHE[str(real / file.relative_to(path.parent))] = {}  # noqa: SLF001 - the managers read through this cache
    with quiet(), garbage_collection_off(), vault.active():
        inventory = InventoryManager(loader=loader, sources=[str(path)], parse=False)
        data = inventory._inventory  # noqa: SLF001 - parse_sources() would turn an error into a warning
        data.current_source = str(original)  # becomes inventory_file and inventory_dir
        try:
            inventory_loader.get("yaml").parse(data, loader, str(path))
            data.processed_sources.append(str(path))
            inventory.reconcile_inventory()
            for file in files:
                name = str(real / file.relative_to(path.parent))
                found = loader.load_from_file(name, cache="all", unsafe=True, trusted_as_template=True)
                if not isinstance(found, dict):
                    loader._FILE_CACHE[name] = {}  # noqa: SLF001 - `variable_files` reports it; the managers would stop
        except AnsibleError as error:
            raise ValueError(str(error)) from error
        variable_manager = VariableManager(loader=loader, inventory=inventory)
        HostVars(inventory=inventory, variable_manager=variable_manager, loader=loader)  # registers itself with the manager, for templates
    return inventory, variable_manager


def _clear_plugin_caches() -> None:
    """Clear the caches of the group_vars plugin, which keep the folders that exist for the life of the process."""
    from ansible.plugins.loader import vars_loader  # noqa: PLC0415

    plugin = sys.modules[type(vars_loader.get("host_group_vars")).__module__]
    for cache in (plugin.CANONICAL_PATHS, plugin.FOUND, plugin.NAK):
        cache.clear()
