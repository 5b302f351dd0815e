"""Ansible's own managers over one inventory: they give meaning. The only module that loads an inventory with Ansible."""

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
from primus_bootstrap.core.errors import InventoryError, PlanError, Problem
from primus_bootstrap.inventory.schema.names import is_ansible_secret
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Origin, RoleSources
    from primus_bootstrap.inventory.source.vault import Vault

log = logging.getLogger(__name__)


def use_our_settings() -> None:
    """Make Ansible read the settings that every run of ours uses; it does so once, when it is first imported."""
    os.environ.setdefault("ANSIBLE_CONFIG", str(content.ansible_cfg()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ansible's warnings off the user's screen: what they warn of is our error, with its place."""
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(heard):
        yield
    if text := heard.getvalue().strip():
        log.debug("ansible: %s", text)


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Switch the garbage collector off: 12,500 hosts load in 3.3 s instead of 5.6 s, and nothing of it is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def make_loader() -> Any:
    """Return Ansible's file reader."""
    from ansible.parsing.dataloader import DataLoader  # noqa: PLC0415 - Ansible is loaded only where an inventory is

    return DataLoader()


def expand_hosts(pattern: str) -> list[str]:
    """Return the host names that one key under `hosts:` means, by Ansible's own rules.

    Raises:
        ValueError: the pattern is no range.
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
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError("its brackets or bounds do not match") from error


@dataclass(frozen=True, slots=True)
class ManagersView:
    """The managers of one loaded inventory.

    `locate` finds where a variable of a host is written; `sealed` are (group or host, file) of what no password opened.
    """

    loader: Any
    inventory: Any
    managers: Any
    vault: Vault
    sealed: tuple[tuple[str, str], ...]
    locate: Callable[[str, str], Origin | None]

    def select(self, pattern: str) -> tuple[str, ...]:
        """Return the host names that an Ansible host pattern means, in inventory order.

        Raises:
            PlanError: the pattern is no host pattern.
        """
        from ansible.errors import AnsibleError  # noqa: PLC0415

        try:
            with _quiet():
                return tuple(host.name for host in self.inventory.get_hosts(pattern) if not host.implicit)
        except AnsibleError as error:
            raise PlanError(f"no such host pattern: {pattern}", fix=f"name hosts or groups of hosts.yaml ({error})") from error

    def variables(self, host: str) -> Mapping[str, Any]:
        """Return the merged variables of one host; a template or Vault value is resolved when it is asked for.

        Raises:
            PlanError: there is no such host.
        """
        found = self.inventory.get_host(host)
        if found is None or found.implicit:
            raise PlanError(f"no such host: {host}", fix="name a host of hosts.yaml")
        with _quiet():
            raw = self.managers.get_vars(host=found)
        return HostVariables(self, host, raw)

    def read_templates(self, path: Path) -> Any:
        """Return a file of ours whose texts may be templates."""
        with _quiet():
            return self.loader.load_from_file(str(path), cache="all", unsafe=True, trusted_as_template=True)

    def role_scope(self, host: str, sources: RoleSources) -> Callable[[Any], Any]:
        """Return what resolves the templates of a role for one host; no host is asked.

        Raises:
            ValueError: by the returned function: a template uses what is not known without the host, or fails.
        """
        from ansible.errors import AnsibleError  # noqa: PLC0415
        from ansible.plugins.loader import filter_loader  # noqa: PLC0415
        from ansible.template import Templar  # noqa: PLC0415

        variables: dict[str, Any] = {}
        for path in sources.defaults:
            filter_loader.add_directory(str(path.parents[1] / "filter_plugins"))  # the role's own, which its variables use
            variables |= self.read_templates(path) or {}
        with _quiet():
            variables |= self.managers.get_vars(host=self.inventory.get_host(host))
        for path in sources.overrides:
            variables |= self.read_templates(path) or {}
        templar = Templar(loader=self.loader, variables={**variables, "ansible_facts": dict(sources.facts), **sources.given})

        def resolve(value: Any) -> Any:
            try:
                with _quiet(), self.vault.active():
                    return _plain(templar.template(value))
            except AnsibleError as error:
                raise ValueError(str(error).splitlines()[0]) from error

        return resolve


class HostVariables(Mapping[str, Any]):
    """The variables of one host; each is resolved when it is asked for, so that only what is needed must be resolvable."""

    def __init__(self, view: ManagersView, host: str, raw: Mapping[str, Any]) -> None:
        """Keep what is written; nothing is resolved yet."""
        self._view = view
        self._host = host
        self._raw = raw

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._raw)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._raw)

    def __contains__(self, name: object) -> bool:
        """Tell whether it is set, without resolving it."""
        return name in self._raw

    def __getitem__(self, name: str) -> Any:
        """Resolve one variable.

        Raises:
            InventoryError: it is a template that cannot be resolved, or under Vault without a password.
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
        with _quiet(), view.vault.active():
            return _plain(Templar(loader=view.loader, variables=dict(raw)).template(value))
    except AnsibleError as error:
        raise InventoryError([_unresolved(view, host, name, error)]) from error


def _unresolved(view: ManagersView, host: str, name: str, error: Exception) -> Problem:
    origin = view.locate(host, name)
    file, line = (origin.file, origin.line) if origin else ("hosts.yaml", 0)
    if _is_vault_error(error):
        what = f"`{name}` of {host} is under Vault" + (" and the password does not open it" if view.vault else "")
        return Problem(file, line, what, "give the Vault password: --ask-vault-pass or --vault-password-file", "vault-password")
    option = load_options().get(name)
    secret = is_ansible_secret(name) or (option is not None and option.no_log)
    reason = "its template fails" if secret else str(error).splitlines()[0]  # Ansible's own words may quote a value
    what = f"`{name}` of {host} cannot be resolved: {reason}"
    owners = {host, *(group.name for group in view.inventory.get_host(host).get_groups())}
    if sealed := [shown for owner, shown in view.sealed if owner in owners]:
        return Problem(file, line, what, f"give the Vault password: {', '.join(sealed)} cannot be read without it", "vault-password")
    return Problem(file, line, what, "define what the template uses for this host", "template")


def _is_vault_error(error: BaseException | None) -> bool:
    """Look through the causes: the template engine wraps Vault's own error, and captures it in a class that it keeps to itself.

    Its chains may lead back to themselves, so each cause is looked at once.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
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


def open_view(  # noqa: PLR0913, PLR0917 - what is read, what it means, and what opens it
    path: Path, original: Path, loader: Any, vault: Vault, files: Iterable[Path], sealed: Iterable[Path]
) -> tuple[Any, Any]:
    """Load hosts.yaml with Ansible's yaml inventory plugin and nothing else; return (inventory manager, variable manager).

    Args:
        path: hosts.yaml, or a snapshot of it.
        original: hosts.yaml itself, which `inventory_file` and `inventory_dir` name.
        loader: Ansible's file reader.
        vault: The secrets.
        files: The variable files beside it: read now, because Ansible reads them late and stops at what it cannot read.
        sealed: Those that cannot be decrypted: Ansible finds them empty.

    Raises:
        ValueError: Ansible cannot load it.
    """
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.inventory.manager import InventoryManager  # noqa: PLC0415
    from ansible.plugins.loader import inventory_loader  # noqa: PLC0415
    from ansible.vars.hostvars import HostVars  # noqa: PLC0415
    from ansible.vars.manager import VariableManager  # noqa: PLC0415

    _forget_folders()
    loader.set_basedir(str(content.playbooks_dir()))  # as in a run
    loader.set_vault_secrets(list(vault.secrets))
    real = path.parent.resolve()
    for file in sealed:
        loader._FILE_CACHE[str(real / file.relative_to(path.parent))] = {}  # noqa: SLF001 - the managers' only way in
    with _quiet(), collector_off(), vault.active():
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
                    loader._FILE_CACHE[name] = {}  # noqa: SLF001 - said elsewhere with its line; the managers would stop at it later
        except AnsibleError as error:
            raise ValueError(str(error)) from error
        managers = VariableManager(loader=loader, inventory=inventory)
        HostVars(inventory=inventory, variable_manager=managers, loader=loader)  # hands itself to the manager, for templates
    return inventory, managers


def _forget_folders() -> None:
    """Make the group_vars plugin look again: it remembers for the life of the process which folders there are."""
    from ansible.plugins.loader import vars_loader  # noqa: PLC0415

    plugin = sys.modules[type(vars_loader.get("host_group_vars")).__module__]
    for memory in (plugin.CANONICAL_PATHS, plugin.FOUND, plugin.NAK):
        memory.clear()
