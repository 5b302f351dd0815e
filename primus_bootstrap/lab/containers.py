"""Containers and networks of a lab, as podman or docker keeps them: the only module that speaks the engine's language."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import TYPE_CHECKING, Any

from primus_bootstrap.lab.lab_values import LabError
from primus_bootstrap.lab.program import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.lab.lab_values import Lab, LabNode
    from primus_bootstrap.lab.machine import Machine
    from primus_bootstrap.lab.systemd_probe import SystemdRecipe

LAB_LABEL = "primus.lab"
NODE_LABEL = "primus.lab.node"
FOLDER_LABEL = "primus.lab.folder"
# Seconds on an idle machine are a minute on a busy one.
_QUICK_S = 120.0
# Microseconds of each period that a control group may compute, and the period; version 2, else version 1.
_QUOTA = "cat /sys/fs/cgroup/cpu.max 2> /dev/null || (cd /sys/fs/cgroup/cpu && echo $(cat cpu.cfs_quota_us cpu.cfs_period_us))"
# Created but never started: what a `lab up` that was killed in the middle leaves behind.
UNSTARTED = ("created", "configured", "initialized")


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a lab as the engine reports it.

    `state` is the engine's word (`running`, `paused`, `exited`, `created`, …). `address` is empty while it has no network.
    `folder` is the lab's folder at the time it was made.
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


def create(machine: Machine, lab: Lab, node: LabNode, *, image: str, form: SystemdRecipe, files: bytes) -> None:  # noqa: PLR0913 (all needed)
    """Create a node's container and put its files in; starting it is what makes it complete."""
    labels = {LAB_LABEL: lab.name, NODE_LABEL: node.name, FOLDER_LABEL: str(lab.directory)}
    run(
        [
            *machine.engine_argv,
            *form.engine_flags,
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
            *form.create_flags,
            *(f"--volume={mount}:ro" for mount in lab.mounts),
            image,
            "/sbin/init",
        ],
        timeout_s=_QUICK_S,
    )
    run([*machine.engine_argv, "cp", "-", f"{node.container}:/"], timeout_s=_QUICK_S, stdin=files)


def start(machine: Machine, containers: Sequence[str]) -> None:
    """Start containers that exist."""
    run([*machine.engine_argv, "start", *containers], timeout_s=_QUICK_S)


def kill(machine: Machine, container: str) -> None:
    """End every process of a container at once, as a power cut would."""
    run([*machine.engine_argv, "kill", "--signal=KILL", container], timeout_s=_QUICK_S)


def pause(machine: Machine, container: str) -> None:
    """Freeze every process of a container: its connections stay open and nothing answers."""
    run([*machine.engine_argv, "pause", container], timeout_s=_QUICK_S)


def unpause(machine: Machine, container: str) -> None:
    """Let the processes of a paused container go on."""
    run([*machine.engine_argv, "unpause", container], timeout_s=_QUICK_S)


def limit_processors(machine: Machine, container: str, count: float) -> None:
    """Let a running container have no more than this many processors; as many as the machine has is no limit."""
    run([*machine.engine_argv, "update", f"--cpus={count:g}", container], timeout_s=_QUICK_S)


def processor_limit(machine: Machine, container: str) -> float | None:
    """Return how many processors a running container may have; None where it has all that there are.

    Its own control group tells: what `inspect` says is of the time when it was made.
    """
    _, said = execute(machine, container, ["sh", "-c", _QUOTA], timeout_s=_QUICK_S)
    quota, _, period = said.strip().partition(" ")
    limit = int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None
    return None if limit is None or limit >= (os.cpu_count() or 1) else limit


def disconnect(machine: Machine, network: str, container: str) -> None:
    """Take a container off its network: packets to and from it are lost."""
    run([*machine.engine_argv, "network", "disconnect", "--force", network, container], timeout_s=_QUICK_S)


def connect(machine: Machine, lab: Lab, node: LabNode) -> None:
    """Put a container back on its network, at its own address."""
    # Docker derives the hardware address and announces it; podman has to be told.
    flags = ["--ip", node.address, "--alias", node.name, *(["--mac-address", node.mac] if machine.engine == "podman" else [])]
    run([*machine.engine_argv, "network", "connect", *flags, lab.network, node.container], timeout_s=_QUICK_S)


def remove(machine: Machine, containers: Sequence[str]) -> None:
    """Remove containers, whatever state they are in."""
    if containers:
        run([*machine.engine_argv, "rm", "--force", "--volumes", *_no_grace(machine), *containers], timeout_s=_QUICK_S)


def execute(machine: Machine, container: str, argv: Sequence[str], *, timeout_s: float) -> tuple[int, str]:
    """Run a command in a container as root; return its exit status and what it wrote."""
    done = run([*machine.engine_argv, "exec", container, *argv], timeout_s=timeout_s, check=False)
    return done.code, done.out + done.err


def network_subnet(machine: Machine, network: str) -> IPv4Network | None:
    """Return a network's subnet, or None where the engine has no such network."""
    found = [entry for entry in _networks(machine) if entry[0] == network]
    return found[0][1] if found else None


def taken_subnets(machine: Machine) -> tuple[IPv4Network, ...]:
    """Return every subnet that the engine or the machine's own routes use."""
    done = run(["ip", "-json", "-4", "route", "show", "table", "all"], timeout_s=_QUICK_S, check=False)
    routes = [str(entry.get("dst", "")) for entry in (json.loads(done.out) if done.out.strip() else [])]
    taken = [subnet for subnet in map(_as_subnet, routes) if subnet]
    return (*(subnet for _, subnet in _networks(machine) if subnet), *taken)


def create_network(machine: Machine, lab: Lab) -> None:
    """Create the lab's network."""
    run(
        [*machine.engine_argv, "network", "create", f"--subnet={lab.subnet}", f"--label={LAB_LABEL}={lab.name}", lab.network],
        timeout_s=_QUICK_S,
    )


def remove_network(machine: Machine, network: str) -> bool:
    """Remove a network; return whether there was one."""
    if network_subnet(machine, network) is None:
        return False
    run([*machine.engine_argv, "network", "rm", network], timeout_s=_QUICK_S)
    return True


def foreign(machine: Machine, lab: Lab) -> None:
    """Refuse to touch containers that bear our names and are not ours.

    Raises:
        LabError: One exists.
    """
    names = [node.container for node in lab.nodes]
    listed = run([*machine.engine_argv, "ps", "--all", "--format", "{{.Names}}"], timeout_s=_QUICK_S).out.split()
    ours = {entry.name for entry in list_containers(machine, lab.name).values()}
    strange = sorted(set(names) & set(listed) - ours)
    if strange:
        raise LabError(
            f"a container named {strange[0]} exists and is not the lab's",
            fix=f"rename or remove it ({machine.engine} rm -f {strange[0]}), or choose another lab with --name",
        )


def _no_grace(machine: Machine) -> list[str]:
    return ["--time=0"] if machine.engine == "podman" and not machine.engine_version.startswith(("3.", "2.")) else []


def _inspect(machine: Machine, label: str) -> list[Container]:
    listed = run([*machine.engine_argv, "ps", "--all", f"--filter=label={label}", "--format", "{{.Names}}"], timeout_s=_QUICK_S)
    names = listed.out.split()
    if not names:
        return []
    # A container that is removed between the two calls is left out, not an error.
    done = run([*machine.engine_argv, "inspect", *names], timeout_s=_QUICK_S, check=False)
    return [_container(entry) for entry in json.loads(done.out or "[]")]


def _container(entry: dict[str, Any]) -> Container:
    labels = entry["Config"].get("Labels") or {}
    networks = entry["NetworkSettings"].get("Networks") or {}
    address = next((found["IPAddress"] for found in networks.values() if found.get("IPAddress")), "")
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
    names = run([*machine.engine_argv, "network", "ls", "--format", "{{.Name}}"], timeout_s=_QUICK_S).out.split()
    done = run([*machine.engine_argv, "network", "inspect", *names], timeout_s=_QUICK_S, check=False)
    return [_network(entry) for entry in json.loads(done.out or "[]")]


def _network(entry: dict[str, Any]) -> tuple[str, IPv4Network | None]:
    """Read one network: podman with netavark says `subnets`, docker `IPAM`, podman with CNI `plugins`."""
    docker = ((entry.get("IPAM") or {}).get("Config")) or []
    cni = [found for plugin in entry.get("plugins", []) for ranges in (plugin.get("ipam") or {}).get("ranges", []) for found in ranges]
    texts = [found.get("subnet") or found.get("Subnet") or "" for found in [*(entry.get("subnets") or []), *docker, *cni]]
    subnets = [subnet for subnet in map(_as_subnet, texts) if subnet]
    return entry.get("name") or entry.get("Name", ""), subnets[0] if subnets else None


def _as_subnet(text: str) -> IPv4Network | None:
    try:
        subnet = ip_network(text, strict=False)
    except ValueError:
        return None
    return subnet if isinstance(subnet, IPv4Network) and subnet.prefixlen else None
