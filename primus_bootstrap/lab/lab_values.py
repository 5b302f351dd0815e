"""The values of a lab: its name, nodes, addresses and paths, and its errors."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import ClassVar, Literal, get_args

from primus_bootstrap.core.errors import PrimusError, UsageError

# Receives one line per change; the command line prints it.
Progress = Callable[[str], None]
# Locks the cluster with this state folder. The caller passes it, because this package must not import the engine.
LockCluster = Callable[[Path], AbstractContextManager[object]]

# The contents of a lab's hosts.yaml. whole: all services; core: Slurm, storage and jobs; bare: only the group gpu_node, no settings.
Form = Literal["whole", "core", "bare"]
FORMS: tuple[Form, ...] = get_args(Form)

DEFAULT_NAME = "lab"
DEFAULT_COUNT = 3
USER = "primus"
PERSON = "ada"
# Private (RFC 1918), and different from the defaults of Kubespray (10.233/16), podman (10.88/16) and docker (172.17/16).
_SPACE = IPv4Network("10.187.0.0/16")
_FIRST_HOST = 11
MAX_NODES = 200
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")

# apt's code name of each release, and its usual name.
RELEASES: dict[str, str] = {
    "bookworm": "Debian 12",
    "trixie": "Debian 13",
    "jammy": "Ubuntu 22.04",
    "noble": "Ubuntu 24.04",
}


class LabError(PrimusError):
    """An operation on the lab failed, or the lab is in a state in which it is not possible."""

    exit_code: ClassVar[int] = 3


class MachineError(LabError):
    """This machine does not meet a requirement of the lab."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class SystemdRecipe:
    """Container flags with which systemd starts on this machine.

    `title` describes them, `note` the features that nodes will lack, or is empty.
    """

    title: str
    engine_flags: tuple[str, ...]
    create_flags: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class LabNode:
    """One host of the lab: `name` is its host name, `container` its container, `suite` apt's code name of its release."""

    name: str
    container: str
    suite: str
    address: str

    @property
    def distribution(self) -> str:
        """The usual name of the release, or its code name."""
        return RELEASES.get(self.suite, self.suite)

    @property
    def mac(self) -> str:
        """The node's MAC address, the same after a restart.

        With the engine's default, a new address at every start, other hosts use the old one from their ARP caches for up to a minute.
        """
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x00, *IPv4Address(self.address).packed))


@dataclass(frozen=True, slots=True)
class Lab:
    """The desired state of a lab.

    `directory` contains hosts.yaml, which names the first `named` of the nodes, and the state. `mounts` are folders of this
    machine that every node can read, as `SOURCE:TARGET`.
    """

    name: str
    directory: Path
    subnet: IPv4Network
    nodes: tuple[LabNode, ...]
    named: int
    mounts: tuple[str, ...] = ()

    @property
    def listed(self) -> tuple[LabNode, ...]:
        """The nodes that hosts.yaml names; the others are spares."""
        return self.nodes[: self.named]

    @property
    def network(self) -> str:
        """The name of the lab's network in the engine."""
        return network_name(self.name)

    @property
    def hosts_file(self) -> Path:
        """The inventory of the lab."""
        return self.directory / "hosts.yaml"

    @property
    def lab_state(self) -> Path:
        """The folder of the lab's keys and shape; always beside hosts.yaml, which refers to the keys by relative paths."""
        return lab_state(self.directory, self.name)

    @property
    def cluster_state(self) -> Path:
        """The folder of the cluster's runs, lock file and pinned host keys."""
        return cluster_state_dir(self.directory, self.name)

    @property
    def ssh_dir(self) -> Path:
        """The folder of the administrator's key, the user's key and the host keys."""
        return self.lab_state / "ssh"

    @property
    def key_file(self) -> Path:
        """The administrator's private key for every node."""
        return self.ssh_dir / "id_ed25519"

    @property
    def person_key_file(self) -> Path:
        """The private key of the user with an account in hosts.yaml."""
        return self.ssh_dir / f"{PERSON}_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The cluster's pinned host keys."""
        return self.cluster_state / "known_hosts"


def default_folder(name: str) -> Path:
    """Return the default folder of a lab's hosts.yaml, below the current folder."""
    return Path("inventory") / name


def lab_command(words: str, name: str, directory: Path) -> str:
    """Return `primus-bootstrap lab WORDS` with the options that select the lab, for messages."""
    chosen = ["--name", name] if name != DEFAULT_NAME else []
    if directory.resolve() != default_folder(name).resolve():
        chosen += ["--dir", str(directory)]
    return " ".join(["primus-bootstrap lab", words, *map(shlex.quote, chosen)])


def lab_state(directory: Path, name: str) -> Path:
    """Return the folder of the lab's keys and shape, which does not depend on PRIMUS_STATE_DIR."""
    return directory / ".primus" / name


def lab_exists(directory: Path, name: str) -> bool:
    """Return whether `lab up` has created this lab."""
    return (lab_state(directory, name) / "lab.json").is_file()


def heal_command(directory: Path, name: str, host: str) -> str:
    """Return the command that starts a killed host of a lab again; empty if the folder has no such lab."""
    return lab_command(f"fault heal {host}", name, directory) if lab_exists(directory, name) else ""


def cluster_state_dir(directory: Path, name: str) -> Path:
    """Return the folder of `Cluster.state_dir` for this lab's hosts.yaml (tests/unit/test_lab_values.py compares them)."""
    base = os.environ.get("PRIMUS_STATE_DIR")
    return (Path(base) if base else directory / ".primus") / name


def check_name(name: str) -> str:
    """Return the name if it is valid for containers, networks and folders.

    Raises:
        UsageError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name for a lab",
            fix="use a lower-case letter, then up to 30 lower-case letters, digits, dashes or underscores",
        )
    return name


def check_count(count: int) -> int:
    """Return the number of nodes if one /24 network has enough addresses.

    Raises:
        UsageError: It has not.
    """
    if not 1 <= count <= MAX_NODES:
        raise UsageError(f"a lab cannot have {count} hosts", fix=f"use --nodes with 1 to {MAX_NODES}")
    return count


def network_name(name: str) -> str:
    """Return the name of a lab's network in the engine."""
    return f"primus-{name}"


def container_name(name: str, node: str) -> str:
    """Return the name of a node's container in the engine."""
    return f"primus-{name}-{node}"


def subnet_candidates(name: str) -> tuple[IPv4Network, ...]:
    """Return the /24 networks for a lab with this name, the preferred one first.

    The default lab has one fixed subnet, because its hosts.yaml is part of the project. For other labs a hash of the name
    chooses the first one, so that the same name gets the same addresses on every machine where they are free.
    """
    subnets = tuple(_SPACE.subnets(new_prefix=24))
    if name == DEFAULT_NAME:
        return (subnets[1],)
    others = subnets[2:255]
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % len(others)
    return others[start:] + others[:start]


def make_lab(name: str, directory: Path, *, subnet: IPv4Network, count: int, suites: tuple[str, ...], spares: int = 0) -> Lab:  # noqa: PLR0913 (all needed)
    """Return a lab with node1, node2, …: suites in rotation, addresses from .11 upward, the last `spares` nodes as spares."""
    names = tuple(f"node{number}" for number in range(1, check_count(count + spares) + 1))
    nodes = tuple(
        LabNode(
            name=node,
            container=container_name(name, node),
            suite=suites[index % len(suites)],
            address=str(subnet.network_address + _FIRST_HOST + index),
        )
        for index, node in enumerate(names)
    )
    return Lab(name=name, directory=directory, subnet=subnet, nodes=nodes, named=count)
