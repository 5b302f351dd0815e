"""Look at a lab and say how it is: nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab import containers as engine
from primus_bootstrap.lab.hosts_file import hosts_of
from primus_bootstrap.lab.image import image_for, is_imported
from primus_bootstrap.lab.lab_values import Lab, LabError, check_name
from primus_bootstrap.lab.machine import look_at_machine
from primus_bootstrap.lab.reach import Reached, log_in, on_each
from primus_bootstrap.lab.request import Request
from primus_bootstrap.lab.up import plan_lab

if TYPE_CHECKING:
    from primus_bootstrap.lab.machine import Machine


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """How one node is.

    `state` is `running`, `paused`, `stopped`, `partitioned` (running, but off its network), `half made`, or `absent`.
    `systemd` is systemd's own word (`running`, `degraded`, …), `unknown` where nobody could ask. `spare` means that hosts.yaml
    does not name its address. `reason` says why `ssh` is false.
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
    """Whether one release's image is built (`cached`) and in the engine (`imported`)."""

    suite: str
    reference: str
    cached: bool
    imported: bool


@dataclass(frozen=True, slots=True)
class LabStatus:
    """How a lab is; `up` means that every node runs and lets us in."""

    name: str
    directory: str
    engine: str
    subnet: str
    up: bool
    nodes: tuple[NodeStatus, ...]
    images: tuple[ImageStatus, ...]


_REASONS = {"absent": "there is no container", "partitioned": "it is off its network"}


def status(name: str, directory: Path) -> LabStatus:
    """Return how a lab is."""
    machine = look_at_machine()
    lab, found = find_lab(machine, name, directory)
    named = set(hosts_of(lab.hosts_file).values())
    reached = on_each(lab.nodes, lambda node: _ask(lab, node.name, found))
    nodes = tuple(
        NodeStatus(
            name=node.name,
            container=node.container,
            state=_state(lab, found.get(node.name)),
            distribution=node.distribution,
            address=node.address,
            ssh=reached[node.name].ssh,
            systemd=reached[node.name].systemd,
            spare=node.address not in named,
            reason=reached[node.name].reason,
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
    """Return a lab and its containers by node; a running lab is found from any folder, since its containers name theirs."""
    found = engine.list_containers(machine, check_name(name))
    folder = next((Path(entry.folder) for entry in found.values() if entry.folder), directory.absolute())
    lab, shape = plan_lab(machine, name, folder, Request())
    # Containers that nothing remembers are there all the same.
    more = max(len(found) - len(lab.nodes), 0)
    return plan_lab(machine, name, folder, Request(spares=shape.spares + more))[0], found


def require_container(found: dict[str, engine.Container], lab: Lab, node: str) -> engine.Container:
    """Return one node's container.

    Raises:
        LabError: There is none.
    """
    if node in found:
        return found[node]
    known = ", ".join(sorted(found))
    raise LabError(
        f"the lab {lab.name!r} has no host {node}",
        fix=f"choose from: {known}" if known else f"`primus-bootstrap lab up --name {lab.name}` makes it",
    )


def _state(lab: Lab, entry: engine.Container | None) -> str:
    if entry is None:
        return "absent"
    if entry.state in engine.UNSTARTED:
        return "half made"
    if entry.state == "running":
        return "running" if lab.network in entry.networks else "partitioned"
    return "paused" if entry.state == "paused" else "stopped"


def _ask(lab: Lab, node: str, found: dict[str, engine.Container]) -> Reached:
    state = _state(lab, found.get(node))
    if state != "running":
        return Reached(ssh=False, systemd="unknown", reason=_REASONS.get(state, f"the container is {state}"))
    return log_in(lab, next(entry for entry in lab.nodes if entry.name == node))
