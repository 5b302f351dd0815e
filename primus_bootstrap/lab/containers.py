"""Create, inspect, change and remove the containers and the network of a lab with podman or docker."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.lab.lab_values import Lab, LabNode, SystemdRecipe
    from primus_bootstrap.lab.machine import Machine

LAB_LABEL = "primus.lab"
NODE_LABEL = "primus.lab.node"
FOLDER_LABEL = "primus.lab.folder"
# A call takes seconds on an idle machine and up to a minute on a busy one.
_TIMEOUT_S = 120.0
# The CPU quota and period of a container's control group in microseconds; version 2, else version 1.
_QUOTA = "cat /sys/fs/cgroup/cpu.max 2> /dev/null || (cd /sys/fs/cgroup/cpu && echo $(cat cpu.cfs_quota_us cpu.cfs_period_us))"
# The states of a container that an interrupted `lab up` created and did not start.
UNSTARTED = ("created", "configured", "initialized")


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a lab as the engine reports it.

    `state` is the engine's term (`running`, `paused`, `exited`, `created`, …). `address` is empty without a network.
    `folder` is the lab's folder when the container was created.
    """

    name: str
    node: str
    state: str
    networks: tuple[str, ...]
    address: str
    image: str
    folder: str


def list_containers(machine: Machine, name: str) -> dict[str, Container]:
    """Return the containers of the lab with this name, by node."""
    return {entry.node: entry for entry in _inspect(machine, f"{LAB_LABEL}={name}")}


def create(machine: Machine, lab: Lab, node: LabNode, *, image: str, recipe: SystemdRecipe, files: bytes) -> None:  # noqa: PLR0913 (all needed)
    """Create a node's container and copy its files into it, without starting it."""
    labels = {LAB_LABEL: lab.name, NODE_LABEL: node.name, FOLDER_LABEL: str(lab.directory)}
    run(
        [
            *machine.engine_argv,
            *recipe.engine_flags,
            "create",
            "--name",
            node.container,
            "--hostname",
            node.name,
            *(f"--label={key}={value}" for key, value in labels.items()),
            f"--network={lab.network}",
            f"--ip={node.address}",
            f"--mac-address={node.mac}",
            f"--network-alias={node.name}",
            *recipe.create_flags,
            *(f"--volume={mount}:ro" for mount in lab.mounts),
            image,
            "/sbin/init",
        ],
        timeout_s=_TIMEOUT_S,
    )
    run([*machine.engine_argv, "cp", "-", f"{node.container}:/"], timeout_s=_TIMEOUT_S, stdin=files)


def start(machine: Machine, containers: Sequence[str]) -> None:
    """Start existing containers."""
    run([*machine.engine_argv, "start", *containers], timeout_s=_TIMEOUT_S)


def kill(machine: Machine, container: str) -> None:
    """Kill every process of a container, like a power failure."""
    run([*machine.engine_argv, "kill", "--signal=KILL", container], timeout_s=_TIMEOUT_S)


def pause(machine: Machine, container: str) -> None:
    """Freeze every process of a container: connections stay open and get no answer."""
    run([*machine.engine_argv, "pause", container], timeout_s=_TIMEOUT_S)


def unpause(machine: Machine, container: str) -> None:
    """Resume the processes of a paused container."""
    run([*machine.engine_argv, "unpause", container], timeout_s=_TIMEOUT_S)


def limit_processors(machine: Machine, container: str, count: float) -> None:
    """Limit a running container to a number of CPUs; the machine's number of CPUs removes the limit."""
    run([*machine.engine_argv, "update", f"--cpus={count:g}", container], timeout_s=_TIMEOUT_S)


def processor_limit(machine: Machine, container: str) -> float | None:
    """Return the CPU limit of a running container, or None without a limit.

    Reads the control group, because `inspect` reports the limit at creation.
    """
    _, output = execute(machine, container, ["sh", "-c", _QUOTA], timeout_s=_TIMEOUT_S)
    quota, _, period = output.strip().partition(" ")
    limit = int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None
    return None if limit is None or limit >= (os.cpu_count() or 1) else limit


def disconnect(machine: Machine, network: str, container: str) -> None:
    """Disconnect a container from its network: packets to and from it are lost."""
    run([*machine.engine_argv, "network", "disconnect", "--force", network, container], timeout_s=_TIMEOUT_S)


def connect(machine: Machine, lab: Lab, node: LabNode) -> None:
    """Reconnect a container to its network with its address."""
    # Docker derives the MAC address from the IP address; podman needs it as an argument.
    flags = ["--ip", node.address, "--alias", node.name, *(["--mac-address", node.mac] if machine.engine == "podman" else [])]
    run([*machine.engine_argv, "network", "connect", *flags, lab.network, node.container], timeout_s=_TIMEOUT_S)


def remove(machine: Machine, containers: Sequence[str]) -> None:
    """Remove containers in any state."""
    if containers:
        run([*machine.engine_argv, "rm", "--force", "--volumes", *_no_grace(machine), *containers], timeout_s=_TIMEOUT_S)


def execute(machine: Machine, container: str, argv: Sequence[str], *, timeout_s: float) -> tuple[int, str]:
    """Run a command in a container as root; return its exit code and its output."""
    done = run([*machine.engine_argv, "exec", container, *argv], timeout_s=timeout_s, check=False)
    return done.code, done.stdout + done.stderr


def network_subnet(machine: Machine, network: str) -> IPv4Network | None:
    """Return a network's subnet, or None if the engine has no such network."""
    return next((subnet for name, subnet in _networks(machine) if name == network), None)


def taken_subnets(machine: Machine) -> tuple[IPv4Network, ...]:
    """Return every subnet that the engine's networks or the machine's routes use."""
    done = run(["ip", "-json", "-4", "route", "show", "table", "all"], timeout_s=_TIMEOUT_S, check=False)
    routes = [str(entry.get("dst", "")) for entry in (json.loads(done.stdout) if done.stdout.strip() else [])]
    taken = [subnet for subnet in map(_as_subnet, routes) if subnet]
    return (*(subnet for _, subnet in _networks(machine) if subnet), *taken)


def create_network(machine: Machine, lab: Lab) -> None:
    """Create the lab's network."""
    run(
        [*machine.engine_argv, "network", "create", f"--subnet={lab.subnet}", f"--label={LAB_LABEL}={lab.name}", lab.network],
        timeout_s=_TIMEOUT_S,
    )


def remove_network(machine: Machine, network: str) -> bool:
    """Remove a network; return whether it existed."""
    if network_subnet(machine, network) is None:
        return False
    run([*machine.engine_argv, "network", "rm", network], timeout_s=_TIMEOUT_S)
    return True


def other_folder(found: Mapping[str, Container], directory: Path) -> str:
    """Return the folder from which the containers of a lab were created if it is not `directory`, else an empty string."""
    folders = {entry.folder for entry in found.values() if entry.folder}
    return min((folder for folder in folders if Path(folder).resolve() != directory.resolve()), default="")


def refuse_foreign_containers(machine: Machine, lab: Lab) -> None:
    """Fail if a container that is not part of a lab has the name of one of this lab's containers.

    Raises:
        LabError: Such a container exists.
    """
    names = {node.container for node in lab.nodes}
    existing = run([*machine.engine_argv, "ps", "--all", "--format", "{{.Names}}"], timeout_s=_TIMEOUT_S).stdout.split()
    in_lab = {entry.name for entry in list_containers(machine, lab.name).values()}
    foreign = sorted(names & set(existing) - in_lab)
    if foreign:
        raise LabError(
            f"a container named {foreign[0]} exists and is not part of the lab",
            fix=f"remove it (`{machine.engine} rm -f {foreign[0]}`), or choose another lab with --name",
        )


def _no_grace(machine: Machine) -> list[str]:
    return ["--time=0"] if machine.engine == "podman" and not machine.engine_version.startswith(("3.", "2.")) else []


def _inspect(machine: Machine, label: str) -> list[Container]:
    listed = run([*machine.engine_argv, "ps", "--all", f"--filter=label={label}", "--format", "{{.Names}}"], timeout_s=_TIMEOUT_S)
    names = listed.stdout.split()
    if not names:
        return []
    # check=False: a container may be removed between the two calls.
    done = run([*machine.engine_argv, "inspect", *names], timeout_s=_TIMEOUT_S, check=False)
    return [_container(entry) for entry in json.loads(done.stdout or "[]")]


def _container(entry: dict[str, Any]) -> Container:
    labels = entry["Config"].get("Labels") or {}
    networks = entry["NetworkSettings"].get("Networks") or {}
    address = next((network["IPAddress"] for network in networks.values() if network.get("IPAddress")), "")
    return Container(
        name=entry["Name"].lstrip("/"),
        node=labels.get(NODE_LABEL, ""),
        state=entry["State"]["Status"],
        networks=tuple(networks),
        address=address,
        image=entry["Config"].get("Image", ""),
        folder=labels.get(FOLDER_LABEL, ""),
    )


def _networks(machine: Machine) -> list[tuple[str, IPv4Network | None]]:
    names = run([*machine.engine_argv, "network", "ls", "--format", "{{.Name}}"], timeout_s=_TIMEOUT_S).stdout.split()
    done = run([*machine.engine_argv, "network", "inspect", *names], timeout_s=_TIMEOUT_S, check=False)
    return [_network(entry) for entry in json.loads(done.stdout or "[]")]


def _network(entry: dict[str, Any]) -> tuple[str, IPv4Network | None]:
    """Parse one network. The subnets are in `subnets` (podman with netavark), `IPAM` (docker) or `plugins` (podman with CNI)."""
    docker = ((entry.get("IPAM") or {}).get("Config")) or []
    cni = [item for plugin in entry.get("plugins", []) for ranges in (plugin.get("ipam") or {}).get("ranges", []) for item in ranges]
    texts = [item.get("subnet") or item.get("Subnet") or "" for item in [*(entry.get("subnets") or []), *docker, *cni]]
    subnets = [subnet for subnet in map(_as_subnet, texts) if subnet]
    return entry.get("name") or entry.get("Name", ""), subnets[0] if subnets else None


def _as_subnet(text: str) -> IPv4Network | None:
    try:
        subnet = ip_network(text, strict=False)
    except ValueError:
        return None
    return subnet if isinstance(subnet, IPv4Network) and subnet.prefixlen else None
