"""Create, repair and remove a lab. `lab up` converges from any state; a second run changes nothing."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab import containers as engine
from primus_bootstrap.lab.apt_settings import read_apt_settings
from primus_bootstrap.lab.hosts_file import ensure_hosts_file, read_hosts, recorded_subnet
from primus_bootstrap.lab.image import ensure_image, file_lock, image_for
from primus_bootstrap.lab.kernel_limits import inotify_shortage
from primus_bootstrap.lab.lab_values import (
    Lab,
    LabError,
    LabNode,
    check_name,
    cluster_state_dir,
    lab_command,
    lab_state,
    make_lab,
    network_name,
    subnet_candidates,
)
from primus_bootstrap.lab.machine import inspect_machine
from primus_bootstrap.lab.node_files import node_archive
from primus_bootstrap.lab.reach import LoginResult, for_each_node, sshd_answers, wait_for_nodes
from primus_bootstrap.lab.request import Request, Shape, decide_shape, load_shape, save_shape
from primus_bootstrap.lab.ssh_keys import ensure_keys, fingerprint, host_key_file, pin_host_keys, public_key
from primus_bootstrap.lab.systemd_probe import find_systemd_recipe, forget_systemd_recipe
from primus_bootstrap.lab.torch_folder import ensure_torch, is_torch, torch_mount

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from primus_bootstrap.lab.image import Image
    from primus_bootstrap.lab.lab_values import LockCluster, Progress, SystemdRecipe
    from primus_bootstrap.lab.machine import Machine

    # The image reference and the systemd recipe of each release.
    BootPlan = dict[str, tuple[str, SystemdRecipe]]


@dataclass(frozen=True, slots=True)
class UpReport:
    """The result of `up`: one line per change, and the host key fingerprint of each new node."""

    lab: Lab
    changes: tuple[str, ...]
    fingerprints: tuple[tuple[str, str], ...]


def up(name: str, directory: Path, request: Request, *, progress: Progress, lock_cluster: LockCluster) -> UpReport:
    """Create or repair a lab.

    Args:
        name: The name of the lab.
        directory: The folder of its hosts.yaml and its state.
        request: The options of `lab up`.
        progress: Receives one line per change.
        lock_cluster: Locks the cluster while hosts.yaml is replaced.

    Raises:
        MachineError: This machine cannot run a lab.
        LabError: The lab cannot be created as requested.
        LockedError: hosts.yaml must be replaced while another run uses the cluster.
    """
    machine = inspect_machine()
    lab, shape = plan_lab(machine, check_name(name), directory.absolute(), request)
    engine.refuse_foreign_containers(machine, lab)
    _refuse_start_elsewhere(machine, lab)
    _refuse_recreation(machine, lab, shape)
    _create_folder(lab)
    with file_lock(lab.lab_state / "lab.lock", timeout_s=1800, progress=progress, what=f"the lab {lab.name!r}"):
        changes = []
        if ensure_hosts_file(lab, request, lock_cluster):
            changes.append(f"wrote {lab.hosts_file}")
        if save_shape(lab.lab_state, shape):
            changes.append(f"saved the shape: {shape.nodes} hosts, {shape.spares} spare, {', '.join(shape.releases)}")
        changes += ensure_keys(lab)
        changes += pin_host_keys(lab)
        for change in changes:
            progress(change)
        changes += _ensure_nodes(machine, lab, progress)
    new = [node for node in lab.nodes if any(change.startswith(f"{node.name}: created") for change in changes)]
    fingerprints = tuple((node.name, fingerprint(public_key(host_key_file(lab, node)))) for node in new)
    return UpReport(lab, tuple(changes), fingerprints)


def down(name: str, directory: Path, *, purge: bool, progress: Progress) -> bool:
    """Remove a lab's containers and network, and with `purge` its keys and runs; return whether anything was removed.

    hosts.yaml stays, because the user may have edited it.

    Raises:
        LabError: The lab was created from another folder.
    """
    machine = inspect_machine()
    refuse_other_folder(machine, name, directory, "down --purge" if purge else "down")
    found = engine.list_containers(machine, check_name(name))
    engine.remove(machine, [entry.name for entry in found.values()])
    for node in sorted(found):
        progress(f"{node}: removed")
    removed = engine.remove_network(machine, network_name(name))
    if removed:
        progress(f"network {network_name(name)}: removed")
    state = _state_folders(name, directory) if purge else []
    for path in state:
        shutil.rmtree(path)
        progress(f"{path}: removed")
    return bool(found or removed or state)


def plan_lab(machine: Machine, name: str, directory: Path, request: Request) -> tuple[Lab, Shape]:
    """Return the desired lab and its shape. The subnet is the existing one, the one in hosts.yaml, or the first free one.

    Raises:
        LabError: The addresses are in use, or hosts.yaml and the running network have different ones.
    """
    hosts_file = directory / "hosts.yaml"
    running = engine.network_subnet(machine, network_name(name))
    recorded = recorded_subnet(hosts_file)
    if running and recorded and running != recorded:
        raise LabError(
            f"{hosts_file} has addresses in {recorded}, but the lab {name!r} runs in {running}",
            fix=_recreate(name, directory),
        )
    subnet = running or _free_subnet(machine, name, (recorded,) if recorded else subnet_candidates(name))
    remembered = load_shape(lab_state(directory, name))
    shape = decide_shape(request, remembered, named=len(read_hosts(hosts_file)), available=machine.suites)
    if request.torch:
        shape = _with_torch(machine, shape)
    lab = make_lab(name, directory, subnet=subnet, count=shape.nodes, suites=shape.releases, spares=shape.spares)
    return replace(lab, mounts=shape.mounts), shape


def _with_torch(machine: Machine, shape: Shape) -> Shape:
    """Add the mount with torch. Hosts keep the one that they have, because the mounts of an existing host cannot change."""
    if any(is_torch(machine, mount) for mount in shape.mounts):
        return shape
    return replace(shape, mounts=(*shape.mounts, torch_mount(machine, shape.releases)))


def _recreate(name: str, directory: Path) -> str:
    return f"run `{lab_command('down', name, directory)}`, then `lab up` again"


def _refuse_recreation(machine: Machine, lab: Lab, shape: Shape) -> None:
    """Fail if existing hosts would need another release or other mounts.

    Raises:
        LabError: They would: only new hosts can get these.
    """
    before = load_shape(lab.lab_state)
    if not before or not engine.list_containers(machine, lab.name):
        return
    if before.releases != shape.releases:
        what = f"have the release {', '.join(before.releases)}, and the release of an existing host cannot change"
        raise LabError(f"the hosts of the lab {lab.name!r} {what}", fix=_recreate(lab.name, lab.directory))
    if before.mounts != shape.mounts:
        what = f"have the mounts {', '.join(before.mounts) or '(none)'}, and the mounts of an existing host cannot change"
        raise LabError(f"the hosts of the lab {lab.name!r} {what}", fix=_recreate(lab.name, lab.directory))


def refuse_other_folder(machine: Machine, name: str, directory: Path, words: str) -> None:
    """Fail if a lab was created from another folder, for example from another clone. `words` are the verb and its arguments.

    Raises:
        LabError: It was.
    """
    if other := engine.other_folder(engine.list_containers(machine, check_name(name)), directory):
        raise LabError(
            f"the lab {name!r} was created from the folder {other}, not from {directory.absolute()}; nothing was changed",
            fix=f"if you mean that lab: {lab_command(words, name, Path(other))}; for another lab add --name",
        )


def _refuse_start_elsewhere(machine: Machine, lab: Lab) -> None:
    """Fail if the lab was created from another folder, which has its keys.

    Raises:
        LabError: It was.
    """
    if other := engine.other_folder(engine.list_containers(machine, lab.name), lab.directory):
        free = next(name for name in (f"{lab.name}{number}" for number in count(2)) if not engine.list_containers(machine, name))
        raise LabError(
            f"the lab {lab.name!r} was created from the folder {other}, which has its keys",
            fix=f"give your lab another name: primus-bootstrap lab up --name {free}",
        )


def _create_folder(lab: Lab) -> None:
    try:
        lab.ssh_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LabError(f"cannot create {lab.ssh_dir}: {error.strerror}", fix="choose a folder that you can write with --dir") from error


def _free_subnet(machine: Machine, name: str, candidates: tuple[IPv4Network, ...]) -> IPv4Network:
    taken = engine.taken_subnets(machine)
    for subnet in candidates:
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise LabError(
        f"the addresses of the lab {name!r} ({candidates[0]}) are in use on this machine",
        fix=f"find the user with `ip route` and `{machine.engine} network ls` and remove it, or choose another --name",
    )


def _ensure_nodes(machine: Machine, lab: Lab, progress: Progress) -> list[str]:
    """Create, repair or remove containers until they match the lab; return the changes."""
    found = engine.list_containers(machine, lab.name)
    changes = []
    if engine.network_subnet(machine, lab.network) is None:
        changes += _remove(machine, list(found.values()), "because its network does not exist", progress)
        found = {}
        engine.create_network(machine, lab)
        changes.append(f"network {lab.network}: created with {lab.subnet}")
        progress(changes[-1])
    nodes = {node.name: node for node in lab.nodes}
    surplus = [entry for node, entry in found.items() if node not in nodes]
    broken = [entry for node, entry in found.items() if node in nodes and _is_broken(entry, nodes[node])]
    changes += _remove(machine, surplus, "because the lab has fewer hosts now", progress)
    changes += _remove(machine, broken, "because it was not fully created", progress)
    complete = {node: entry for node, entry in found.items() if entry not in surplus and entry not in broken}
    changes += _repair(machine, lab, complete, progress)
    missing = [node for node in lab.nodes if node.name not in complete]
    if missing:
        changes += _create(machine, lab, missing, progress)
    if changes:
        started = time.monotonic()  # after the images were built
        _report_logins(wait_for_nodes(lab, lab.nodes), time.monotonic() - started, progress)
    else:
        _check_quickly(lab)
    return changes


def _is_broken(entry: engine.Container, node: LabNode) -> bool:
    has_other_address = bool(entry.address) and entry.address != node.address
    return entry.state in engine.UNSTARTED or has_other_address


def _remove(machine: Machine, entries: list[engine.Container], why: str, progress: Progress) -> list[str]:
    engine.remove(machine, [entry.name for entry in entries])
    changes = [f"{entry.node}: removed {why}" for entry in entries]
    for change in changes:
        progress(change)
    return changes


def _repair(machine: Machine, lab: Lab, found: dict[str, engine.Container], progress: Progress) -> list[str]:
    changes = []
    for node in lab.nodes:
        if entry := found.get(node.name):
            changes += [f"{node.name}: {change}" for change in repair_container(machine, lab, node, entry)]
    for change in changes:
        progress(change)
    return changes


def repair_container(machine: Machine, lab: Lab, node: LabNode, entry: engine.Container) -> list[str]:
    """Resume, reconnect or start one container and remove its CPU limit; return the changes."""
    changes = []
    if entry.state == "paused":
        engine.unpause(machine, entry.name)
        changes.append("resumed")
    if lab.network not in entry.networks:
        engine.connect(machine, lab, node)
        changes.append("reconnected to its network")
    if entry.state not in ("running", "paused"):
        engine.start(machine, [entry.name])
        changes.append("started")
    elif engine.processor_limit(machine, entry.name) is not None:
        engine.limit_processors(machine, entry.name, os.cpu_count() or 1)
        changes.append("CPU limit removed")
    return changes


def _create(machine: Machine, lab: Lab, nodes: list[LabNode], progress: Progress) -> list[str]:
    if warning := inotify_shortage(len(nodes)):
        progress(warning)
    for mount in lab.mounts:
        if is_torch(machine, mount):
            ensure_torch(mount, progress)
    settings = read_apt_settings(machine.codename, sudo=machine.sudo)
    images = [image_for(machine, suite) for suite in dict.fromkeys(node.suite for node in nodes)]
    for image in images:
        ensure_image(machine, image, settings, progress)
    archives = {node.name: node_archive(machine, lab, node, settings) for node in nodes}
    before = _boot_plan(machine, images, progress)
    try:
        _start_new(machine, lab, nodes, archives, before)
    except LabError:
        # The cached recipe may be outdated, for example because a limit changed.
        for image in images:
            forget_systemd_recipe(machine, image)
        after = _boot_plan(machine, images, progress)
        if after == before:
            raise
        engine.remove(
            machine, [entry.name for entry in engine.list_containers(machine, lab.name).values() if entry.state in engine.UNSTARTED]
        )
        existing = engine.list_containers(machine, lab.name)
        _start_new(machine, lab, [node for node in nodes if node.name not in existing], archives, after)
    changes = [f"{node.name}: created, {node.distribution}, {node.address}" for node in nodes]
    for change in changes:
        progress(change)
    return changes


def _boot_plan(machine: Machine, images: list[Image], progress: Progress) -> BootPlan:
    return {image.suite: (image.reference, find_systemd_recipe(machine, image, progress)) for image in images}


def _start_new(machine: Machine, lab: Lab, nodes: list[LabNode], archives: dict[str, bytes], plan: BootPlan) -> None:
    for node in nodes:
        reference, recipe = plan[node.suite]
        engine.create(machine, lab, node, image=reference, recipe=recipe, files=archives[node.name])
    if nodes:
        engine.start(machine, [node.container for node in nodes])


def _check_quickly(lab: Lab) -> None:
    answers = for_each_node(lab.nodes, lambda node: sshd_answers(node, timeout_s=3.0))
    starting = [node for node in lab.nodes if not answers[node.name]]
    if starting:
        wait_for_nodes(lab, starting)


def _report_logins(logins: dict[str, LoginResult], seconds: float, progress: Progress) -> None:
    for name, login in logins.items():
        if login.systemd != "running":
            progress(f"{name}: systemd is {login.systemd}; run `systemctl --failed` on {name} to see the failed units")
    progress(f"SSH answers on {', '.join(logins)} after {seconds:.1f} s")


def _state_folders(name: str, directory: Path) -> list[Path]:
    return [path for path in dict.fromkeys((lab_state(directory, name), cluster_state_dir(directory, name))) if path.is_dir()]
