"""The values that hosts.yaml becomes. Commands work on these; Ansible reads the files, as a snapshot that fits them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from primus_bootstrap.core.errors import InventoryError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something is written; `line` counts from 1."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Host:
    """A host and every group that it is in, its groups' parents included, `all` and `ungrouped` left out."""

    name: str
    groups: tuple[str, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach one host, with every template resolved.

    `port` is 22 unless set. Empty strings mean "not set": ssh's own configuration then decides. `host_key` is the
    public key that the inventory pins beforehand, as `ssh-ed25519 AAAA…`.
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
    """What a role's templates see beside the inventory: files of variables that it wins over, files that win over it, and facts.

    `given` wins over all of them.
    """

    defaults: tuple[Path, ...]
    overrides: tuple[Path, ...]
    facts: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)


class AnsibleView(Protocol):
    """Ansible's own managers over one inventory: they give meaning, our positions give places."""

    def select(self, pattern: str) -> tuple[str, ...]:
        """Return the host names that an Ansible host pattern means, in inventory order."""

    def variables(self, host: str) -> Mapping[str, Any]:
        """Return the merged variables of one host as Ansible sees them, templates resolved where they can be."""

    def role_scope(self, host: str, sources: RoleSources) -> Callable[[Any], Any]:
        """Return what resolves the templates of a role for one host."""

    def read_templates(self, path: Path) -> Any:
        """Return a file of ours whose texts may be templates."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One validated hosts.yaml.

    `hosts` are in inventory order. `groups` maps every group, `all` included, to its host names, those of its children
    included. `stated` maps every variable that is set anywhere to the places where it is. `sums` are the checksums of the
    files that were read (`snapshot.file_sums`). `snapshot` is the copy that was read in place of `path`, or None.
    """

    name: str
    path: Path
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]]
    view: AnsibleView
    stated: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    snapshot: Path | None = None

    @property
    def state_dir(self) -> Path:
        """The folder of runs, lock and known_hosts of this cluster: `.primus/<name>` beside hosts.yaml.

        `PRIMUS_STATE_DIR` replaces the `.primus` part, for an inventory on a read-only disk.
        """
        return state_dir_of(self.path, self.name)

    def select(self, pattern: str) -> tuple[str, ...]:
        """Return the host names that an Ansible host pattern means, in inventory order."""
        return self.view.select(pattern)

    def connection(self, host: str) -> Connection:
        """Return how to reach one host.

        Raises:
            InventoryError: a template or Vault value among its connection variables cannot be resolved.
        """
        merged = self.view.variables(host)

        def text(*names: str) -> str:
            return next((str(merged[name]) for name in names if merged.get(name)), "")

        port = text("ansible_port", "ansible_ssh_port") or "22"
        if not (port.isascii() and port.isdigit()):
            # A plain one is judged by `rules_hosts`; only a template gets here.
            what = f"ansible_port of {host} is no number"
            raise InventoryError([Problem(str(self.path), 0, what, "give a number from 1 to 65535", "port")])
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
    """Return the state folder of the cluster of that name; see `Cluster.state_dir`."""
    base = os.environ.get("PRIMUS_STATE_DIR")
    root = hosts.parent / ".primus" if not base else type(hosts)(base)
    return root / name
