"""What has to run, from what ran last and what hosts.yaml says now: an unchanged cluster costs one look, a new worker only itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.errors import PlanError
from primus_bootstrap.kubernetes import commands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.kubernetes.commands import Command

_GROUPS = ("kube_control_plane", "etcd", "kube_node", "calico_rr")


@dataclass(frozen=True, slots=True)
class State:
    """An inventory as Kubespray reads it: `hosts` maps a host to the sum of its variables and groups, `groups` a group to its hosts."""

    release: str
    version: str
    groups: Mapping[str, tuple[str, ...]]
    hosts: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)


def state_from_json(data: Mapping[str, Any]) -> State:
    """Read a state back."""
    groups = {name: tuple(hosts) for name, hosts in data["groups"].items()}
    return State(str(data["release"]), str(data["version"]), groups, dict(data["hosts"]))


def state_of(listed: Mapping[str, Any], release: str) -> State:
    """Return the state of what `ansible-inventory --list` prints; no value of a variable is kept, only a sum."""
    groups = {name: tuple(_members(listed, name)) for name in _GROUPS}
    known = listed.get("_meta", {}).get("hostvars", {})
    hosts = {}
    for host in dict.fromkeys(host for members in groups.values() for host in members):
        said = json.dumps([known.get(host, {}), [name for name in _GROUPS if host in groups[name]]], sort_keys=True, default=str)
        hosts[host] = hashlib.sha256(said.encode()).hexdigest()
    first = next(iter(groups["kube_control_plane"]), "")
    return State(release, str(known.get(first, {}).get("kube_version", "")), groups, hosts)


def _members(listed: Mapping[str, Any], group: str) -> list[str]:
    entry = listed.get(group, {})
    below = [host for child in entry.get("children", ()) for host in _members(listed, child)]
    return list(dict.fromkeys((*entry.get("hosts", ()), *below)))


def choose(before: State | None, now: State, *, unknown: tuple[str, ...] = (), whole: bool = False) -> tuple[Command, ...]:
    """Return what has to run; nothing where nothing changed since it last ended well.

    Args:
        before: what last ended well.
        now: what hosts.yaml says.
        unknown: hosts whose facts no run has kept.
        whole: run the full play whatever changed.

    Raises:
        PlanError: another version of Kubernetes is wanted, or another first control plane: neither is what the full play is for.
    """
    if before is None:
        return commands.create()
    _refuse_upgrade(before, now)
    _refuse_another_first(before, now)
    if whole or before.release != now.release:
        return commands.create()
    new = [host for host in now.hosts if host not in before.hosts]
    changed = [host for host, told in before.hosts.items() if host in now.hosts and now.hosts[host] != told]
    serving = [host for name in ("kube_control_plane", "etcd", "calico_rr") for host in now.groups[name]]
    if changed or any(host in serving for host in new):
        return commands.create()
    if new:
        return commands.add_workers(new, unknown=unknown)
    gone = [host for host in before.hosts if host not in now.hosts]
    left = any(host in before.groups[name] for host in gone for name in ("kube_control_plane", "etcd"))
    return commands.settle() if left else ()


def _refuse_upgrade(before: State, now: State) -> None:
    if before.version != now.version:
        what = f"kube_version went from {before.version} to {now.version}, and apply does not upgrade: nodes would not be drained"
        raise PlanError(what, fix=f"primus-bootstrap upgrade kubernetes, or set kube_version back to {before.version}")


def _refuse_another_first(before: State, now: State) -> None:
    """New control planes and members are appended; one that comes first would be taken for the cluster's origin."""
    for name in ("kube_control_plane", "etcd"):
        old = [host for host in before.groups[name] if host in now.groups[name]]
        if now.groups[name] and now.groups[name][0] not in before.groups[name]:
            what = f"{name} begins with {now.groups[name][0]}, which is new: the first host is where the cluster's own state is read"
            raise PlanError(what, fix=f"put {old[0] if old else 'a host that serves already'} first and append {now.groups[name][0]}")
