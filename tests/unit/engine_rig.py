"""A small cluster for tests: a hosts.yaml, playbooks, the `Cluster` value, and an sshd."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.inventory.cluster import Cluster, Host, Origin
from tests.waiting import LIMIT_S, listens, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


@dataclass
class PrivateSshd:
    """An sshd on a loopback port with its own host key and one authorized key."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it listens; create a host key if there is none."""
        self.process = start_sshd(self.folder, self.port, "ListenAddress 127.0.0.1")

    def stop(self) -> None:
        """Stop the server."""
        if self.process:
            self.process.terminate()
            self.process.wait(LIMIT_S)

    def change_host_key(self) -> None:
        """Restart the server with a new host key, like another machine at the same address."""
        self.stop()
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink()
        self.start()

    @property
    def public_key(self) -> str:
        """The host key in the form of `host_key` in hosts.yaml."""
        return " ".join((self.folder / "host_key.pub").read_text(encoding="utf-8").split()[:2])

    def variables(self) -> dict[str, Any]:
        """Return the connection variables of a host with this sshd."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.folder / "user_key"),
            "ansible_python_interpreter": sys.executable,
        }


def start_sshd(folder: Path, port: int, *settings: str) -> subprocess.Popen[bytes]:
    """Start an sshd with the keys of a folder and additional lines of sshd_config; create missing keys, and wait until it listens."""
    for name in ("host_key", "user_key"):
        if not (folder / name).exists():
            make_key(folder / name)
    base = [f"Port {port}", f"HostKey {folder}/host_key", f"AuthorizedKeysFile {folder}/user_key.pub", "StrictModes no", "UsePAM no"]
    config = folder / "sshd_config"
    config.write_text("\n".join([*base, "PidFile none", "PermitRootLogin yes", *settings, ""]), encoding="utf-8")
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
    until(lambda: listens("127.0.0.1", port), "sshd")
    return process


def make_key(path: Path, passphrase: str = "") -> None:
    """Create an Ed25519 key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True, timeout=LIMIT_S)


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_sshd() -> bool:
    """Return whether this machine can run an sshd for a test."""
    return Path("/usr/sbin/sshd").exists() and os.geteuid() == 0
