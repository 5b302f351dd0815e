"""Read the state of a lab, without changing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.lab import containers as engine
from primus_bootstrap.lab.hosts_file import read_hosts
from primus_bootstrap.lab.image import image_for, is_imported
from primus_bootstrap.lab.lab_values import Lab, LabError, check_name, lab_command
from primus_bootstrap.lab.machine import inspect_machine
from primus_bootstrap.lab.reach import LoginResult, for_each_node, log_in
from primus_bootstrap.lab.request import Request, load_shape
from primus_bootstrap.lab.up import plan_lab

if TYPE_CHECKING:
    from primus_bootstrap.lab.lab_values import LabNode
    from primus_bootstrap.lab.machine import Machine


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of one node.

    `state` is `running`, `paused`, `stopped`, `partitioned` (running without its network), `half made` (never started), or
    `absent`. `systemd` is systemd's state (`running`, `degraded`, …), or `unknown` without a login. `spare` means that hosts.yaml
    does not contain its address. `reason` says why `ssh` is false.
    """

    name: str
    container: str
    state: str
    distribution: str
    address: str
    ssh: bool
    systemd: str
    spare: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ImageStatus:
    """Whether the image of a release is built (`cached`) and in the engine (`imported`)."""

    suite: str
    reference: str
    cached: bool
    imported: bool


@dataclass(frozen=True, slots=True)
class LabStatus:
    """The state of a lab. `up` means that SSH login works on every node."""

    name: str
    directory: str
    engine: str
    subnet: str
    up: bool
    nodes: tuple[NodeStatus, ...]
    images: tuple[ImageStatus, ...]


_REASONS = {
    "absent": "the container does not exist",
    "half made": "the container was never started",
    "partitioned": "it is disconnected from its network",
}


def status(name: str, directory: Path) -> LabStatus:
    """Return the state of a lab.

    Raises:
        LabError: There is no such lab.
    """
    machine = inspect_machine()
    lab, found = find_lab(machine, name, directory)
    if not found and not lab.hosts_file.exists() and load_shape(lab.lab_state) is None:
        raise LabError(f"there is no lab {name!r} in {lab.directory}", fix=f"start it: {lab_command('up', name, directory)}")
    named = set(read_hosts(lab.hosts_file).values())
    logins = for_each_node(lab.nodes, lambda node: _try_login(lab, node, found))
    nodes = tuple(
        NodeStatus(
            name=node.name,
            container=node.container,
            state=_state(lab, found.get(node.name)),
            distribution=node.distribution,
            address=node.address,
            ssh=logins[node.name].ssh,
            systemd=logins[node.name].systemd,
            spare=node.address not in named,
            reason=logins[node.name].reason,
        )
        for node in lab.nodes
    )
    images = [image_for(machine, suite) for suite in dict.fromkeys(node.suite for node in lab.nodes)]
    return LabStatus(
        name=lab.name,
        directory=str(lab.directory),
        engine=f"{machine.engine} {machine.engine_version}",
        subnet=str(lab.subnet),
        up=all(node.ssh for node in nodes),
        nodes=nodes,
        images=tuple(ImageStatus(image.suite, image.reference, image.archive.exists(), is_imported(machine, image)) for image in images),
    )


def find_lab(machine: Machine, name: str, directory: Path) -> tuple[Lab, dict[str, engine.Container]]:
    """Return a lab and its containers by node. A label of the containers gives the folder of an existing lab."""
    found = engine.list_containers(machine, check_name(name))
    folder = next((Path(entry.folder) for entry in found.values() if entry.folder), directory.absolute())
    lab, shape = plan_lab(machine, name, folder, Request())
    # Include containers beyond the saved shape.
    more = max(len(found) - len(lab.nodes), 0)
    return plan_lab(machine, name, folder, Request(spares=shape.spares + more))[0], found


def require_container(found: dict[str, engine.Container], lab: Lab, node: str) -> engine.Container:
    """Return one node's container.

    Raises:
        UsageError: The lab has no such node.
        LabError: The lab is not up.
    """
    if node in found:
        return found[node]
    if not found:
        raise LabError(f"the lab {lab.name!r} is not up", fix=f"start it: {lab_command('up', lab.name, lab.directory)}")
    raise UsageError(f"the lab {lab.name!r} has no host {node}", fix=f"choose from: {', '.join(sorted(found))}")


def _state(lab: Lab, entry: engine.Container | None) -> str:
    if entry is None:
        return "absent"
    if entry.state in engine.UNSTARTED:
        return "half made"
    if entry.state == "running":
        return "running" if lab.network in entry.networks else "partitioned"
    return "paused" if entry.state == "paused" else "stopped"


def _try_login(lab: Lab, node: LabNode, found: dict[str, engine.Container]) -> LoginResult:
    state = _state(lab, found.get(node.name))
    if state != "running":
        return LoginResult(ssh=False, systemd="unknown", reason=_REASONS.get(state, f"the container is {state}"))
    return log_in(lab, node)
