"""The values of a lab: its name, its nodes and where its files lie. Pure: nothing here looks at the machine."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import ClassVar, Literal, get_args

from primus_bootstrap.core.errors import PrimusError

# How long work reports what it does; the command line prints it.
Say = Callable[[str], None]
# Takes a cluster's state folder and holds the cluster's lock; given by the caller, because the engine is no part of the lab.
Hold = Callable[[Path], AbstractContextManager[object]]

# How much a lab's hosts.yaml holds: everything; Slurm, storage and jobs alone; no group but gpu_node, and no settings.
Form = Literal["whole", "core", "bare"]
FORMS: tuple[Form, ...] = get_args(Form)

DEFAULT_NAME = "lab"
DEFAULT_COUNT = 3
USER = "primus"
PERSON = "ada"
# 10.187.0.0/16 is private (RFC 1918) and clear of the defaults of Kubespray (10.233/16), podman (10.88/16) and docker (172.17/16).
_SPACE = IPv4Network("10.187.0.0/16")
_FIRST_HOST = 11
MAX_NODES = 200
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")

# Release numbers are what people say; code names are what apt says.
RELEASES: dict[str, str] = {
    "bookworm": "Debian 12",
    "trixie": "Debian 13",
    "jammy": "Ubuntu 22.04",
    "noble": "Ubuntu 24.04",
}


class LabError(PrimusError):
    """The lab could not be brought to the state that was asked for."""

    exit_code: ClassVar[int] = 1


class MachineError(LabError):
    """This machine lacks something that the lab needs."""

    exit_code: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class LabNode:
    """One host of the lab: `name` is its host name, `container` what the engine calls it, `suite` apt's code name."""

    name: str
    container: str
    suite: str
    address: str

    @property
    def distribution(self) -> str:
        """What people call the release, the code name where we know no other."""
        return RELEASES.get(self.suite, self.suite)

    @property
    def mac(self) -> str:
        """The node's hardware address, which a restart keeps as a server's does.

        Engines give a new one at every start; whoever talked to the node before then sends to the old one for up to a minute.
        """
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x00, *IPv4Address(self.address).packed))


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab as it should be; `directory` holds its hosts.yaml and its state, which names the first `named` of the nodes.

    `mounts` are folders of this machine that every node sees and cannot write, as `SOURCE:TARGET`.
    """

    name: str
    directory: Path
    subnet: IPv4Network
    nodes: tuple[LabNode, ...]
    named: int
    mounts: tuple[str, ...] = ()

    @property
    def listed(self) -> tuple[LabNode, ...]:
        """The nodes that hosts.yaml names; the others are spare."""
        return self.nodes[: self.named]

    @property
    def network(self) -> str:
        """What the engine calls the lab's network."""
        return network_name(self.name)

    @property
    def hosts_file(self) -> Path:
        """The inventory that names the lab's hosts."""
        return self.directory / "hosts.yaml"

    @property
    def own_state(self) -> Path:
        """The folder of what the lab itself keeps; always beside hosts.yaml, which names keys in it by their path."""
        return own_state(self.directory, self.name)

    @property
    def cluster_state(self) -> Path:
        """The folder of the cluster's runs, lock and pinned host keys."""
        return state_dir(self.directory, self.name)

    @property
    def ssh_dir(self) -> Path:
        """The folder of the user's key, the person's key and the host keys."""
        return self.own_state / "ssh"

    @property
    def key_file(self) -> Path:
        """The private key that opens every node as the administrator."""
        return self.ssh_dir / "id_ed25519"

    @property
    def person_key_file(self) -> Path:
        """The private key of the person that hosts.yaml gives an account."""
        return self.ssh_dir / f"{PERSON}_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The cluster's pins."""
        return self.cluster_state / "known_hosts"


def default_folder(name: str) -> Path:
    """Return the folder of a lab's hosts.yaml where none is given: under the current one."""
    return Path("inventory") / name


def own_state(directory: Path, name: str) -> Path:
    """Return the folder of what the lab itself keeps, wherever PRIMUS_STATE_DIR puts the runs."""
    return directory / ".primus" / name


def state_dir(directory: Path, name: str) -> Path:
    """Return the folder that `Cluster.state_dir` means for this lab's hosts.yaml (a test holds the two equal)."""
    base = os.environ.get("PRIMUS_STATE_DIR")
    return (Path(base) if base else directory / ".primus") / name


def check_name(name: str) -> str:
    """Return the lab's name where containers, networks and folders can bear it."""
    if not _NAME.fullmatch(name):
        raise LabError(
            f"{name!r} cannot name a lab",
            fix="use a letter, then up to 30 lower-case letters, digits, dashes or underscores",
        )
    return name


def check_count(count: int) -> int:
    """Return the number of nodes where one /24 has addresses for them."""
    if not 1 <= count <= MAX_NODES:
        raise LabError(f"a lab cannot have {count} nodes", fix=f"ask for 1 to {MAX_NODES}")
    return count


def network_name(name: str) -> str:
    """Return what the engine calls the network of the lab with this name."""
    return f"primus-{name}"


def container_name(name: str, node: str) -> str:
    """Return what the engine calls one node of the lab with this name."""
    return f"primus-{name}-{node}"


def subnet_candidates(name: str) -> tuple[IPv4Network, ...]:
    """Return the /24 networks that a lab with this name may take, the preferred one first.

    The default lab has one fixed subnet, because its hosts.yaml is part of the project; others start at a place that
    their name gives, so that the same name gets the same addresses on every machine where they are free.
    """
    subnets = tuple(_SPACE.subnets(new_prefix=24))
    if name == DEFAULT_NAME:
        return (subnets[1],)
    others = subnets[2:255]
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % len(others)
    return others[start:] + others[:start]


def make_lab(name: str, directory: Path, *, subnet: IPv4Network, count: int, suites: tuple[str, ...], spares: int = 0) -> Lab:  # noqa: PLR0913 (all needed)
    """Lay out a lab: node1, node2, … with the suites taken in turn and fixed addresses from .11 upward; the last `spares` are spare."""
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
