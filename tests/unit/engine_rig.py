"""A small cluster for tests: a hosts.yaml, playbooks and the `Cluster` value."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.inventory.cluster import Cluster, Host, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import RoleSources


@dataclass(frozen=True)
class SmallView:
    """Resolves the patterns `a:b`, `a:&b` and `a:!b` in a dictionary of groups."""

    groups: Mapping[str, tuple[str, ...]]
    host_variables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def select(self, pattern: str) -> tuple[str, ...]:
        """See `AnsibleView.select`."""
        selected: set[str] = set()
        for part in sorted(re.split(r"[:,]", pattern), key=lambda word: "&!".find(word[0]) if word[0] in "&!" else -1):
            name = part.lstrip("&!")
            members = set(self.groups.get(name, (name,) if name in self.groups["all"] else ()))
            if part.startswith("!"):
                selected -= members
            elif part.startswith("&"):
                selected &= members
            else:
                selected |= members
        return tuple(host for host in self.groups["all"] if host in selected)

    def variables(self, host: str) -> Mapping[str, Any]:
        """See `AnsibleView.variables`."""
        return self.host_variables.get(host, {})

    def role_scope(self, host: str, sources: RoleSources) -> Callable[[Any], Any]:
        """See `AnsibleView.role_scope`; the engine resolves no role."""
        raise NotImplementedError(host, sources)

    def read_templates(self, path: Path) -> Any:
        """See `AnsibleView.read_templates`; the engine does not use it."""
        raise NotImplementedError(path)


def make_cluster(folder: Path, groups: Mapping[str, Sequence[str]], variables: Mapping[str, Mapping[str, Any]] | None = None) -> Cluster:
    """Write a hosts.yaml with these groups and variables, and return its cluster."""
    variables = variables or {}
    names = tuple(dict.fromkeys(host for members in groups.values() for host in members))
    inventory = {
        "all": {
            "hosts": {name: dict(variables.get(name, {})) for name in names},
            "children": {group: {"hosts": dict.fromkeys(members, None)} for group, members in groups.items()},
        }
    }
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(inventory), encoding="utf-8")
    all_groups = {"all": names, **{group: tuple(members) for group, members in groups.items()}}
    hosts = tuple(Host(name, tuple(group for group, members in groups.items() if name in members), Origin(str(path), 1)) for name in names)
    return Cluster(name="small", path=path, hosts=hosts, groups=all_groups, view=SmallView(all_groups, variables))


def write_playbooks(folder: Path, phases: Mapping[str, str]) -> Path:
    """Write `site.yml` and one playbook per phase (name -> YAML text), and return their folder."""
    playbooks = folder / "playbooks"
    playbooks.mkdir()
    site = "".join(f"- name: {name}\n  import_playbook: {name}.yml\n" for name in phases)
    (playbooks / "site.yml").write_text(f"---\n{site}", encoding="utf-8")
    for name, text in phases.items():
        (playbooks / f"{name}.yml").write_text(text, encoding="utf-8")
    return playbooks


LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


def local_hosts_yaml(*hosts: str) -> str:
    """Return the text of a hosts.yaml with GPU hosts that all are this machine."""
    variables = f"{{cluster_name: small, ansible_connection: local, ansible_python_interpreter: {sys.executable}}}"
    return f"all:\n  vars: {variables}\n  children:\n    gpu_node:\n      hosts:\n" + "".join(f"        {host}:\n" for host in hosts)


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
