"""Bring a lab to the state that was asked for, from whatever state it is in; doing it twice does nothing."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab import containers as engine
from primus_bootstrap.lab.apt_settings import read_apt_settings
from primus_bootstrap.lab.hosts_file import ensure_hosts_file, hosts_of, recorded_subnet
from primus_bootstrap.lab.image import ensure_image, file_lock, image_for
from primus_bootstrap.lab.kernel_limits import shortage
from primus_bootstrap.lab.lab_values import (
    Lab,
    LabError,
    LabNode,
    check_name,
    default_folder,
    make_lab,
    network_name,
    own_state,
    state_dir,
    subnet_candidates,
)
from primus_bootstrap.lab.machine import look_at_machine
from primus_bootstrap.lab.node_files import node_archive
from primus_bootstrap.lab.reach import Reached, listens, on_each, wait_for_nodes
from primus_bootstrap.lab.request import Request, Shape, decide_shape, recall, remember
from primus_bootstrap.lab.ssh_keys import ensure_keys, fingerprint, host_key_file, pin_host_keys, public_key
from primus_bootstrap.lab.systemd_probe import find_boot_form, forget_boot_form

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from primus_bootstrap.lab.image import Image
    from primus_bootstrap.lab.lab_values import Hold, Say
    from primus_bootstrap.lab.machine import Machine
    from primus_bootstrap.lab.systemd_probe import SystemdRecipe


# By release: what to start, and how.
BootPlan = dict[str, tuple[str, "SystemdRecipe"]]


@dataclass(frozen=True, slots=True)
class UpReport:
    """What `up` did: `changes` is empty where the lab was right already; `fingerprints` are the host keys of new nodes, by name."""

    lab: Lab
    changes: tuple[str, ...]
    fingerprints: tuple[tuple[str, str], ...]


def up(name: str, directory: Path, request: Request, *, say: Say, hold: Hold) -> UpReport:
    """Bring a lab up.

    Args:
        name: Which lab.
        directory: The folder of its hosts.yaml and its state.
        request: Which hosts it is to have.
        say: Told what is being done.
        hold: Holds the lock of the cluster with a state folder, while hosts.yaml is written anew.

    Raises:
        MachineError: This machine cannot run a lab.
        LabError: Something stands in the way.
        LockedError: hosts.yaml would be written anew, and a run of this cluster is under way.
    """
    machine = look_at_machine()
    lab, shape = plan_lab(machine, check_name(name), directory.absolute(), request)
    refuse_other_folder(machine, lab)
    _refuse_other_make(machine, lab, shape)
    _make_folder(lab)
    with file_lock(lab.own_state / "lab.lock", timeout_s=1800, say=say, what=f"the lab {lab.name!r}"):
        changes = []
        if ensure_hosts_file(lab, request, hold):
            changes.append(f"wrote {lab.hosts_file}")
        if remember(lab.own_state, shape):
            changes.append(f"noted {shape.nodes} hosts and {shape.spares} spare, of {', '.join(shape.releases)}")
        changes += ensure_keys(lab)
        changes += pin_host_keys(lab)
        for change in changes:
            say(change)
        changes += _ensure_nodes(machine, lab, say)
    new = [node for node in lab.nodes if any(change.startswith(f"{node.name}: created") for change in changes)]
    prints = tuple((node.name, fingerprint(public_key(host_key_file(lab, node)))) for node in new)
    return UpReport(lab, tuple(changes), prints)


def down(name: str, directory: Path | None, *, purge: bool, say: Say) -> bool:
    """Remove a lab's containers and network, and with `purge` its keys and runs; return whether there was anything.

    hosts.yaml stays: it belongs to the user.
    """
    machine = look_at_machine()
    found = engine.list_containers(machine, check_name(name))
    engine.remove(machine, [entry.name for entry in found.values()])
    for node in sorted(found):
        say(f"{node}: removed")
    removed = engine.remove_network(machine, network_name(name))
    if removed:
        say(f"network {network_name(name)}: removed")
    running_from = next((Path(entry.folder) for entry in found.values() if entry.folder), default_folder(name))
    state = _state_folders(name, directory or running_from) if purge else []
    for path in state:
        shutil.rmtree(path)
        say(f"{path}: removed")
    return bool(found or removed or state)


def plan_lab(machine: Machine, name: str, directory: Path, request: Request) -> tuple[Lab, Shape]:
    """Lay out the lab: the subnet that it has, or had, or else the first free one that its name gives.

    Raises:
        LabError: Its addresses are taken, or hosts.yaml and the running network disagree.
    """
    hosts_file = directory / "hosts.yaml"
    running = engine.network_subnet(machine, network_name(name))
    recorded = recorded_subnet(hosts_file)
    if running and recorded and running != recorded:
        raise LabError(
            f"{hosts_file} has addresses in {recorded}, but the lab {name!r} runs in {running}",
            fix=f"`primus-bootstrap lab down --name {name}`, then `lab up` again",
        )
    subnet = running or _free_subnet(machine, name, (recorded,) if recorded else subnet_candidates(name))
    remembered = recall(own_state(directory, name))
    shape = decide_shape(request, remembered, named=len(hosts_of(hosts_file)), available=machine.suites)
    lab = make_lab(name, directory, subnet=subnet, count=shape.nodes, suites=shape.releases, spares=shape.spares)
    return replace(lab, mounts=shape.mounts), shape


def _refuse_other_make(machine: Machine, lab: Lab, shape: Shape) -> None:
    """Refuse another release or other mounts for hosts that are there.

    Raises:
        LabError: That is asked for.
    """
    before = recall(lab.own_state)
    if not before or not engine.list_containers(machine, lab.name):
        return
    again = f"`primus-bootstrap lab down --name {lab.name}`, then `lab up` again"
    if before.releases != shape.releases:
        what = f"are of {', '.join(before.releases)}; a release is chosen when they are made"
        raise LabError(f"the hosts of the lab {lab.name!r} {what}", fix=again)
    if before.mounts != shape.mounts:
        what = f"have {', '.join(before.mounts) or 'nothing'} mounted; a mount is chosen when they are made"
        raise LabError(f"the hosts of the lab {lab.name!r} {what}", fix=again)


def refuse_other_folder(machine: Machine, lab: Lab) -> None:
    """Refuse to take over a lab whose keys lie in another folder, or containers that are not a lab's.

    Raises:
        LabError: That is the case.
    """
    engine.foreign(machine, lab)
    others = {entry.folder for entry in engine.list_containers(machine, lab.name).values()} - {str(lab.directory)}
    if others:
        raise LabError(
            f"the lab {lab.name!r} runs already, from the folder {min(others)}",
            fix=f"use it from there, or `primus-bootstrap lab down --name {lab.name}` first, or bring up another one with --name",
        )


def _make_folder(lab: Lab) -> None:
    try:
        lab.ssh_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LabError(f"cannot write {lab.ssh_dir}: {error.strerror}", fix="choose a folder of yours with --dir") from error


def _free_subnet(machine: Machine, name: str, candidates: tuple[IPv4Network, ...]) -> IPv4Network:
    taken = engine.taken_subnets(machine)
    for subnet in candidates:
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise LabError(
        f"the addresses of the lab {name!r} ({candidates[0]}) are in use on this machine",
        fix="`ip route` and the engine's `network ls` show by what; free them, or choose another --name and folder",
    )


def _ensure_nodes(machine: Machine, lab: Lab, say: Say) -> list[str]:
    """Make, mend or remove containers until they are as the lab wants them; return what was done."""
    started = time.monotonic()
    found = engine.list_containers(machine, lab.name)
    changes = []
    if engine.network_subnet(machine, lab.network) is None:
        # Containers cannot outlive their network in any useful way.
        changes += _remove(machine, list(found.values()), "its network was gone", say)
        found = {}
        engine.create_network(machine, lab)
        changes.append(f"network {lab.network}: created with {lab.subnet}")
        say(changes[-1])
    wanted = {node.name: node for node in lab.nodes}
    surplus = [entry for node, entry in found.items() if node not in wanted]
    broken = [entry for node, entry in found.items() if node in wanted and _is_broken(entry, wanted[node])]
    changes += _remove(machine, surplus, "the lab is to have fewer nodes", say)
    changes += _remove(machine, broken, "it was half made", say)
    whole = {node: entry for node, entry in found.items() if entry not in surplus and entry not in broken}
    changes += _mend(machine, lab, whole, say)
    missing = [node for node in lab.nodes if node.name not in whole]
    if missing:
        changes += _make(machine, lab, missing, say)
    if changes:
        _tell_state(wait_for_nodes(lab, lab.nodes), time.monotonic() - started, say)
    else:
        _check_quickly(lab)
    return changes


def _is_broken(entry: engine.Container, node: LabNode) -> bool:
    elsewhere = bool(entry.address) and entry.address != node.address
    return entry.state in engine.UNSTARTED or elsewhere


def _remove(machine: Machine, entries: list[engine.Container], why: str, say: Say) -> list[str]:
    engine.remove(machine, [entry.name for entry in entries])
    changes = [f"{entry.node}: removed, {why}" for entry in entries]
    for change in changes:
        say(change)
    return changes


def _mend(machine: Machine, lab: Lab, found: dict[str, engine.Container], say: Say) -> list[str]:
    """Undo what keeps whole containers from serving: paused, off the network, stopped."""
    changes = []
    for node in lab.nodes:
        entry = found.get(node.name)
        done = heal_container(machine, lab, node, entry) if entry else []
        changes += [f"{node.name}: {word}" for word in done]
    for change in changes:
        say(change)
    return changes


def heal_container(machine: Machine, lab: Lab, node: LabNode, entry: engine.Container) -> list[str]:
    """Bring one container back; return what was done in words."""
    done = []
    if entry.state == "paused":
        engine.unpause(machine, entry.name)
        done.append("resumed")
    if lab.network not in entry.networks:
        engine.connect(machine, lab, node)
        done.append("back on its network")
    if entry.state not in ("running", "paused"):
        engine.start(machine, [entry.name])
        done.append("started")
    elif engine.processor_limit(machine, entry.name) is not None:
        engine.limit_processors(machine, entry.name, os.cpu_count() or 1)
        done.append("at full speed")
    return done


def _make(machine: Machine, lab: Lab, nodes: list[LabNode], say: Say) -> list[str]:
    lacking = shortage(len(nodes))
    if lacking:
        say(lacking)
    settings = read_apt_settings(machine.codename, sudo=machine.sudo)
    images = [image_for(machine, suite) for suite in dict.fromkeys(node.suite for node in nodes)]
    for image in images:
        ensure_image(machine, image, settings, say)
    archives = {node.name: node_archive(machine, lab, node, settings) for node in nodes}
    before = _boot_plan(machine, images, say)
    try:
        _start_new(machine, lab, nodes, archives, before)
    except LabError:
        # What worked when it was tried may have stopped working: an upgrade of the engine, another limit.
        for image in images:
            forget_boot_form(machine, image)
        after = _boot_plan(machine, images, say)
        if after == before:
            raise
        engine.remove(
            machine, [entry.name for entry in engine.list_containers(machine, lab.name).values() if entry.state in engine.UNSTARTED]
        )
        there = engine.list_containers(machine, lab.name)
        _start_new(machine, lab, [node for node in nodes if node.name not in there], archives, after)
    changes = [f"{node.name}: created, {node.distribution}, {node.address}" for node in nodes]
    for change in changes:
        say(change)
    return changes


def _boot_plan(machine: Machine, images: list[Image], say: Say) -> BootPlan:
    return {image.suite: (image.reference, find_boot_form(machine, image, say)) for image in images}


def _start_new(machine: Machine, lab: Lab, nodes: list[LabNode], archives: dict[str, bytes], plan: BootPlan) -> None:
    for node in nodes:
        reference, form = plan[node.suite]
        engine.create(machine, lab, node, image=reference, form=form, files=archives[node.name])
    if nodes:
        engine.start(machine, [node.container for node in nodes])


def _check_quickly(lab: Lab) -> None:
    silent = [name for name, greets in on_each(lab.nodes, lambda node: listens(node, timeout_s=3.0)).items() if not greets]
    if silent:
        # It may just be starting: give it the time that a new one gets.
        wait_for_nodes(lab, [node for node in lab.nodes if node.name in silent])


def _tell_state(reached: dict[str, Reached], seconds: float, say: Say) -> None:
    for name, found in reached.items():
        if found.systemd != "running":
            say(f"{name}: systemd is {found.systemd}; `systemctl --failed` on it names the units")
    say(f"SSH answers on {', '.join(reached)} after {seconds:.1f} s")


def _state_folders(name: str, directory: Path) -> list[Path]:
    return [path for path in dict.fromkeys((own_state(directory, name), state_dir(directory, name))) if path.is_dir()]
