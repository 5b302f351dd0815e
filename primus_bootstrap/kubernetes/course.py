"""What has to run, from what ran last and what hosts.yaml says now: an unchanged cluster costs one look, a new worker only itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.errors import PlanError
from primus_bootstrap.inventory.groups import load_kubespray_variables
from primus_bootstrap.kubernetes import commands

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from primus_bootstrap.kubernetes.commands import Command

_GROUPS = ("kube_control_plane", "etcd", "kube_node", "calico_rr")
# Variables of Kubespray whose change does not call for cluster.yml: a role of ours keeps them, they are judged apart, or
# upgrade-cluster.yml and remove-node.yml alone read them.
_NOT_COUNTED = ("node_labels", "node_taints", "kube_version")
_OF_DAY_2 = ("drain_", "upgrade_node_")


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
        told = {name: value for name, value in known.get(host, {}).items() if _counts(name)}
        said = json.dumps([told, [name for name in _GROUPS if host in groups[name]]], sort_keys=True, default=str)
        hosts[host] = hashlib.sha256(said.encode()).hexdigest()
    first = next(iter(groups["kube_control_plane"]), "")
    return State(release, str(known.get(first, {}).get("kube_version", "")), groups, hosts)


def _counts(name: str) -> bool:
    """Tell whether a variable's change means that Kubespray has to run: one of its own, or one that its templates may use.

    Labels and taints of nodes are kept by a role of their own, in seconds; how a host is reached changes nothing there, and how a node
    is drained is read when it is.
    """
    if name.startswith("site_"):
        return True
    return name in load_kubespray_variables() and not name.startswith(("ansible_", *_OF_DAY_2)) and name not in _NOT_COUNTED


def _members(listed: Mapping[str, Any], group: str) -> list[str]:
    entry = listed.get(group, {})
    below = [host for child in entry.get("children", ()) for host in _members(listed, child)]
    return list(dict.fromkeys((*entry.get("hosts", ()), *below)))


@dataclass(frozen=True, slots=True)
class Course:
    """What has to run, and the state to note once all of it has ended well."""

    commands: tuple[Command, ...]
    state: State


def choose(before: State | None, now: State, present: Collection[str], *, unknown: Sequence[str] = (), whole: bool = False) -> Course:
    """Return what has to run; nothing where nothing changed since it last ended well.

    Args:
        before: what last ended well.
        now: what hosts.yaml says.
        present: the hosts that may be touched: of a run for one node that node, otherwise those that were not lost before.
        unknown: hosts whose facts no run has kept.
        whole: run the full play whatever changed.

    Raises:
        PlanError: another version of Kubernetes is wanted, another first control plane, or a first run without all hosts.
    """
    away = [host for host in now.hosts if host not in present]
    if before is None:
        _refuse_part(away)
        return Course(commands.create(), now)
    _refuse_upgrade(before, now)
    _refuse_another_first(before, now)
    new = [host for host in now.hosts if host not in before.hosts and host in present]
    differs = [host for host in new if _serves(now, host)] or before.release != now.release
    changed = [host for host, told in before.hosts.items() if host in present and now.hosts.get(host, told) != told]
    gone = [host for host in before.hosts if host not in now.hosts]
    if differs or any(_serves(before, host) for host in gone):
        return Course(commands.create(), now)  # everybody is told who serves
    noted = _noted(before, now, present)
    if whole or changed:
        return Course(commands.create(",".join(host for host in now.hosts if host in present) if away else ""), noted)
    return Course(commands.add_workers(new, unknown=unknown) if new else (), noted)


def _serves(state: State, host: str) -> bool:
    return any(host in state.groups[name] for name in ("kube_control_plane", "etcd", "calico_rr"))


def _noted(before: State, now: State, present: Collection[str]) -> State:
    """Return what is true after a run for some hosts: the others are as they were."""
    kept = {
        host: told if host in present else before.hosts[host] for host, told in now.hosts.items() if host in present or host in before.hosts
    }
    return State(now.release, now.version, now.groups, kept)


def without(state: State, host: str) -> State:
    """Return the state once a host has left; while it stands in hosts.yaml, the next apply lets it join again."""
    groups = {name: tuple(one for one in hosts if one != host) for name, hosts in state.groups.items()}
    return State(state.release, state.version, groups, {one: told for one, told in state.hosts.items() if one != host})


def refuse_removal(state: State, host: str) -> None:
    """Refuse to take out what Kubespray cannot.

    Raises:
        PlanError: it is the first control plane or etcd member, or none of the cluster's hosts.
    """
    if host not in state.hosts:
        raise PlanError(f"{host} is no host of this Kubernetes", fix="name a host of kube_control_plane, kube_node or etcd")
    for name in ("kube_control_plane", "etcd"):
        if state.groups[name][:1] == (host,):
            what = f"{host} is the first host of {name}: the cluster's own state is read there, and Kubespray cannot take it out"
            raise PlanError(what, fix=f"move it to the end of {name} in hosts.yaml, apply, then remove it")
    if host in state.groups["etcd"] and len(state.groups["etcd"]) <= 2:
        what = f"etcd has {len(state.groups['etcd'])} members: without {host} the rest has no majority"
        raise PlanError(what, fix="let another member join first")


def _refuse_part(away: Sequence[str]) -> None:
    if away:
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        what = f"{away[0]}{more} did not get here, and the first run makes the cluster of all its hosts"
        raise PlanError(what, fix="bring them up, or take them out of hosts.yaml and add them later")


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
