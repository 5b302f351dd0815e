"""The values that an inventory is loaded into: `Cluster`, its hosts, and how to connect to them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from primus_bootstrap.core.errors import InventoryError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


STATE_FOLDER = ".primus"  # beside hosts.yaml


@dataclass(frozen=True, slots=True)
class Origin:
    """A position in a file. `line` counts from 1; 0 means the whole file."""

    file: str
    line: int

    def problem(self, what: str, fix: str, rule: str) -> Problem:
        """Return a problem at this position."""
        return Problem(self.file, self.line, what, fix, rule)


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its groups, including their parents but not `all` and `ungrouped`."""

    name: str
    groups: tuple[str, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Connection:
    """How to connect to one host, with every template resolved.

    An empty string means that the variable is not set; ssh's own configuration then applies. `host_key` is the public key
    that the inventory pins (`ssh-ed25519 AAAA…`).
    """

    host: str
    address: str
    port: int = 22
    user: str = ""
    private_key_file: str = ""
    ssh_common_args: str = ""
    ssh_extra_args: str = ""
    host_key: str = ""


@dataclass(frozen=True, slots=True)
class RoleSources:
    """The variables of a role's templates that do not come from the inventory.

    The inventory overrides the variables in the files `defaults`; the files `overrides` override it. `given` overrides all others.
    """

    defaults: tuple[Path, ...]
    overrides: tuple[Path, ...]
    facts: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)


class AnsibleView(Protocol):
    """The inventory as Ansible loads it. `ansible.view.ManagersView` implements it; tests use a fake."""

    def select(self, pattern: str) -> tuple[str, ...]:
        """Return the hosts that match an Ansible host pattern, in inventory order."""

    def variables(self, host: str) -> Mapping[str, Any]:
        """Return the merged variables of one host. A template is resolved when its variable is read."""

    def role_scope(self, host: str, sources: RoleSources) -> Callable[[Any], Any]:
        """Return a function that resolves the templates of a role for one host."""

    def read_templates(self, path: Path) -> Any:
        """Return the content of a YAML file of this package; its strings may be templates."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One validated hosts.yaml."""

    name: str
    path: Path
    hosts: tuple[Host, ...]  # all hosts, in inventory order
    groups: Mapping[str, tuple[str, ...]]  # every group, `all` included, with its hosts and those of its children
    view: AnsibleView
    variable_origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)  # where each variable is set
    sums: Mapping[str, str] = field(default_factory=dict)  # the checksums of the files that were read (`snapshot.file_sums`)
    encrypted_files: tuple[str, ...] = ()  # variable files that need a Vault password that was not given
    snapshot: Path | None = None  # the copy of hosts.yaml that was read in place of `path`, or None

    @property
    def state_dir(self) -> Path:
        """The folder of runs, lock and known_hosts: `.primus/<name>` beside hosts.yaml, or `$PRIMUS_STATE_DIR/<name>`."""
        return state_dir_of(self.path, self.name)

    def select(self, pattern: str) -> tuple[str, ...]:
        """Return the hosts that match an Ansible host pattern, in inventory order."""
        return self.view.select(pattern)

    def connection(self, host: str) -> Connection:
        """Return how to connect to one host.

        Raises:
            InventoryError: A template or Vault value among its connection variables cannot be resolved.
        """
        variables = self.view.variables(host)

        def text(*names: str) -> str:
            return next((str(variables[name]) for name in names if variables.get(name)), "")

        port = text("ansible_port", "ansible_ssh_port") or "22"
        if not (port.isascii() and port.isdigit()):
            # `rules.hosts.bad_port` checks plain values; this one comes from a template.
            what = f"ansible_port of {host} is not a number"
            raise InventoryError([Problem(str(self.path), 0, what, "set ansible_port to a number from 1 to 65535", "port")])
        return Connection(
            host=host,
            address=text("ansible_host", "ansible_ssh_host") or host,
            port=int(port),
            user=text("ansible_user", "ansible_ssh_user"),
            private_key_file=text("ansible_ssh_private_key_file", "ansible_private_key_file"),
            ssh_common_args=text("ansible_ssh_common_args"),
            ssh_extra_args=text("ansible_ssh_extra_args"),
            host_key=text("host_key"),
        )


def state_dir_of(hosts: Path, name: str) -> Path:
    """Return the state folder of the cluster with this name; see `Cluster.state_dir`."""
    base = os.environ.get("PRIMUS_STATE_DIR")
    root = hosts.parent / STATE_FOLDER if not base else type(hosts)(base)
    return root / name
