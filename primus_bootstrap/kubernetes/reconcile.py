"""Choose the commands of Kubespray from the last state and the current hosts.yaml: none without changes, few for a new worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.structured import readable
from primus_bootstrap.inventory.kubespray_release import VARIABLE, load_releases
from primus_bootstrap.inventory.schema.groups import load_kubespray_variables
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.preflight import parse_version

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from primus_bootstrap.kubernetes.commands import Command

_GROUPS = ("kube_control_plane", "etcd", "kube_node", "calico_rr")
# Variables of Kubespray whose change does not need cluster.yml: another role applies them, they are checked separately, or only
# upgrade-cluster.yml and remove-node.yml read them.
_IGNORED = ("node_labels", "node_taints", "kube_version")
_IGNORED_PREFIXES = ("drain_", "upgrade_node_")
# Groups from whose first host Kubespray reads the cluster's state, and whose hosts it must add and remove itself.
_QUORUM = ("kube_control_plane", "etcd")
_CONTROL_GROUPS = (*_QUORUM, "calico_rr")


@readable
@dataclass(frozen=True, slots=True)
class ClusterState:
    """An inventory as Kubespray reads it; done.json has the last one."""

    release: str  # the commit of Kubespray
    version: str  # Kubernetes' version
    groups: Mapping[str, tuple[str, ...]]  # the hosts of each group
    # A digest of each host's variables and groups; empty if the host needs the current control planes and etcd members.
    hosts: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)  # the etcd member name of each etcd host
    # The control groups of each removed host, until the remaining hosts are configured without it.
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    controller_fetches: bool = False  # the controller downloads files for the hosts (`download_localhost`)


def state_of(listed: Mapping[str, Any], release: str) -> ClusterState:
    """Return the state of the output of `ansible-inventory --list`. It contains a digest of the variables, no values."""
    groups = {name: tuple(_members(listed, name)) for name in _GROUPS}
    hostvars = listed.get("_meta", {}).get("hostvars", {})
    hosts = {}
    for host in dict.fromkeys(host for members in groups.values() for host in members):
        variables = {name: value for name, value in hostvars.get(host, {}).items() if _is_relevant(name)}
        text = json.dumps([variables, [name for name in _GROUPS if host in groups[name]]], sort_keys=True, default=str)
        hosts[host] = hashlib.sha256(text.encode()).hexdigest()
    # Kubespray's default is the position in the group (roles/kubespray_defaults/defaults/main/main.yml).
    members = {host: str(hostvars.get(host, {}).get("etcd_member_name") or f"etcd{n}") for n, host in enumerate(groups["etcd"], 1)}
    first = hostvars.get(next(iter(groups["kube_control_plane"]), ""), {})
    fetches = first.get("download_localhost") is True
    return ClusterState(release, str(first.get("kube_version", "")), groups, hosts, members, controller_fetches=fetches)


def _is_relevant(name: str) -> bool:
    """Return whether Kubespray must run after a change of this variable: it is Kubespray's, or its templates may use it.

    Excluded are connection variables, drain settings, and labels and taints, which the role kube_node_labels applies.
    """
    if name.startswith("site_"):
        return True
    return name in load_kubespray_variables() and not name.startswith(("ansible_", *_IGNORED_PREFIXES)) and name not in _IGNORED


def _members(listed: Mapping[str, Any], group: str) -> list[str]:
    entry = listed.get(group, {})
    below = [host for child in entry.get("children", ()) for host in _members(listed, child)]
    return list(dict.fromkeys((*entry.get("hosts", ()), *below)))


@dataclass(frozen=True, slots=True)
class KubesprayPlan:
    """The commands to run, and the state to save after all have succeeded."""

    commands: tuple[Command, ...]
    state: ClusterState


def choose(
    before: ClusterState | None, now: ClusterState, present: Collection[str], *, unknown: Sequence[str] = (), whole: bool = False
) -> KubesprayPlan:
    """Return the commands for the changes since the last successful run.

    Args:
        before: The state after the last successful run; None for a new cluster.
        present: The hosts that may be changed: the selected node, or the hosts that have not failed in this run.
        unknown: Hosts without cached facts.
        whole: Run the full play in any case.

    Raises:
        PlanError: Kubernetes' version or a first control plane changed, the release is an older one, the first run lacks hosts, or a
            host changed its groups without being added or removed by Kubespray.
    """
    away = [host for host in now.hosts if host not in present]
    if before is None:
        _refuse_part(away)
        return KubesprayPlan(commands.create(), now)
    _refuse_upgrade(before, now)
    _refuse_older_release(before, now)
    _refuse_another_first(before, now)
    _refuse_renamed(before, now)
    if not whole:
        _refuse_regrouped(before, now)
    new = [host for host in now.hosts if host not in before.hosts and host in present]
    joined, left = {name for host in new for name in _control_groups(now, host)}, _groups_left(before, now)
    if joined or left or _first_host_moved(before, now) or before.release != now.release:
        return _announce(before, now, present, joined=joined, left=left)
    changed = [host for host, digest in before.hosts.items() if host in present and now.hosts.get(host, digest) != digest]
    after = _state_after(before, now, present)
    if whole or changed:
        full = commands.create(",".join(host for host in now.hosts if host in present) if away else "")
        api_changed = not set(now.groups["kube_control_plane"]).isdisjoint(changed)
        return KubesprayPlan((*full, *(commands.renew_api_servers(_lost_members(now, present)) if api_changed else ())), after)
    return KubesprayPlan(commands.add_workers(new, unknown=unknown, controller_fetches=now.controller_fetches) if new else (), after)


def _control_groups(state: ClusterState, host: str) -> tuple[str, ...]:
    return tuple(name for name in _CONTROL_GROUPS if host in state.groups[name])


def _groups_left(before: ClusterState, now: ClusterState) -> set[str]:
    """Return the control groups that a host left since the remaining hosts were configured."""
    earlier = {**{host: _control_groups(before, host) for host in before.hosts}, **before.left}
    return {name for host, names in earlier.items() for name in names if host not in now.groups[name]}


def _first_host_moved(before: ClusterState, now: ClusterState) -> bool:
    return any(before.groups[name][:1] != now.groups[name][:1] for name in _QUORUM)


def _announce(
    before: ClusterState, now: ClusterState, present: Collection[str], *, joined: Collection[str], left: Collection[str]
) -> KubesprayPlan:
    """Configure the current control planes and etcd members on every host. A later run configures hosts that are lost now."""
    away = [host for host in now.hosts if host not in present]
    firsts = {host for name in _QUORUM for host in now.groups[name][:1]}
    limited = bool(away) and firsts <= set(present)
    limit = ",".join(host for host in now.hosts if host in present) if limited else ""
    lost = _lost_members(now, present) if limited else ()
    if "etcd" in joined:
        steps = commands.add_etcd_member(limit, lost=lost)
    elif joined:
        steps = commands.add_control_plane(limit) + (commands.renew_api_servers(lost) if "etcd" in left else ())
    elif left or _first_host_moved(before, now):
        steps = commands.announce_members(limit, members="etcd" in left, lost=lost)
    else:
        steps = commands.create(limit)
    after = _state_after(before, now, present)
    outdated = {host: "" for host in away if host in before.hosts}
    return KubesprayPlan(steps, replace(after, hosts={**after.hosts, **outdated}) if limited else now)


def _lost_members(now: ClusterState, present: Collection[str]) -> tuple[str, ...]:
    return tuple(host for host in now.hosts if host not in present and _control_groups(now, host))


def _state_after(before: ClusterState, now: ClusterState, present: Collection[str]) -> ClusterState:
    """Return the state after a run for some hosts; the state of the others is unchanged."""
    kept = {
        host: digest if host in present else before.hosts[host]
        for host, digest in now.hosts.items()
        if host in present or host in before.hosts
    }
    still = {host: names for host, names in before.left.items() if host not in present and any(host in now.groups[name] for name in names)}
    return replace(now, hosts=kept, left=still)


def without(state: ClusterState, host: str) -> ClusterState:
    """Return the state after the removal of a host. While the host is in hosts.yaml, the next apply adds it again.

    The state records the host's control groups. After the host has left hosts.yaml, the next apply configures the remaining hosts
    without it; the full play before that would include it.
    """
    groups = {name: tuple(other for other in hosts if other != host) for name, hosts in state.groups.items()}
    hosts = {other: digest for other, digest in state.hosts.items() if other != host}
    members = {other: name for other, name in state.members.items() if other != host}
    served = _control_groups(state, host) or state.left.get(host, ())
    return replace(state, groups=groups, hosts=hosts, members=members, left={**state.left, **({host: served} if served else {})})


def refuse_removal(state: ClusterState, host: str) -> None:
    """Fail if Kubespray cannot remove the host.

    Raises:
        PlanError: The host is not in the cluster, is the first of its control group, or etcd would lose its majority.
    """
    if host not in state.hosts:
        raise PlanError(f"{host} is not a host of this Kubernetes cluster", fix="name a host of kube_control_plane, kube_node or etcd")
    for name in ("kube_control_plane", "etcd"):
        if state.groups[name][:1] == (host,):
            what = f"{host} is the first host of {name}, from which Kubespray reads the cluster's state: Kubespray cannot remove it"
            raise PlanError(what, fix=f"move it to the end of {name} in hosts.yaml, run apply if it is up, and run this again")
    if host in state.groups["etcd"] and len(state.groups["etcd"]) <= 2:
        what = f"etcd has {len(state.groups['etcd'])} members: without {host} it loses its majority"
        raise PlanError(what, fix="add another etcd member first")


def refuse_recovery(state: ClusterState) -> None:
    """Fail if Kubespray's recovery would lose etcd's data.

    the releases' recover_lost_quorum.yml removes the data and calls `etcdctl snapshot restore`, which etcd 3.6 does not have
    (https://github.com/etcd-io/etcd/pull/13809). Kubespray installs etcd 3.6 with Kubernetes 1.35, and 3.5 with older versions.

    Raises:
        PlanError: The cluster has etcd 3.6.
    """
    if parse_version(state.version) >= (1, 35, 0):
        what = f"Kubernetes {state.version} uses etcd 3.6: Kubespray's recovery would remove its data and could not restore it"
        raise PlanError(
            what,
            fix="in hosts.yaml put the remaining hosts first and remove the lost ones, then run `primus-bootstrap restore etcd hosts.yaml`",
        )


def _refuse_part(away: Sequence[str]) -> None:
    if away:
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        what = f"{away[0]}{more} failed in an earlier phase, and the first run needs all hosts of the cluster"
        raise PlanError(what, fix="repair these hosts, or remove them from hosts.yaml and add them later")


def _refuse_upgrade(before: ClusterState, now: ClusterState) -> None:
    if before.version != now.version:
        what = (
            f"kube_version changed from {before.version} to {now.version}, but apply does not upgrade Kubernetes: it does not drain nodes"
        )
        raise PlanError(
            what, fix=f"run `primus-bootstrap upgrade kubernetes hosts.yaml {now.version}`, or set kube_version back to {before.version}"
        )


def _refuse_older_release(before: ClusterState, now: ClusterState) -> None:
    """Fail if an earlier release of Kubespray than the last one would run: it would install older versions of etcd and containerd."""
    names = {release.commit: name for name, release in load_releases().items()}
    order = tuple(names)
    if before.release in names and now.release in names and order.index(before.release) > order.index(now.release):
        last = names[before.release]
        what = f"{VARIABLE} is {names[now.release]}, but the last run used {last}, a later release: Kubespray does not support downgrades"
        raise PlanError(what, fix=f"set `{VARIABLE}: {last}` in hosts.yaml")


def _refuse_another_first(before: ClusterState, now: ClusterState) -> None:
    """Fail if a new host is first in its control group: Kubespray would read the cluster's state from it."""
    for name in ("kube_control_plane", "etcd"):
        old = [host for host in before.groups[name] if host in now.groups[name]]
        if now.groups[name] and now.groups[name][0] not in before.groups[name]:
            what = f"the first host of {name}, {now.groups[name][0]}, is new, but Kubespray reads the cluster's state from the first host"
            raise PlanError(what, fix=f"put {old[0] if old else 'an existing member'} first and {now.groups[name][0]} last in {name}")


def _refuse_renamed(before: ClusterState, now: ClusterState) -> None:
    """Fail if an etcd member's name would change: by default it is the position in the group."""
    renamed = [host for host, name in before.members.items() if host in now.members and now.members[host] != name]
    if renamed:
        host = renamed[0]
        what = (
            f"the etcd member {before.members[host]} on {host} would become {now.members[host]}: names follow the order of the group etcd"
        )
        names = ", ".join(f"etcd_member_name: {before.members[member]} for {member}" for member in before.members if member in now.members)
        raise PlanError(what, fix=f"set the names in hosts.yaml: {names}")


def _refuse_regrouped(before: ClusterState, now: ClusterState) -> None:
    """Fail if an existing host was added to or removed from a control group: Kubespray supports neither."""
    for name in _QUORUM:
        for host in before.hosts:
            was_member, is_member = host in before.groups[name], host in now.groups[name]
            if was_member and not is_member:
                what = f"{host} is no longer in {name}, but Kubespray has not removed it from the cluster"
                remove = f"put it back, run playbooks/day2/node/kubernetes.yml -e node={host} (docs/kubernetes-day2.md), then remove it"
                raise PlanError(what, fix=f"{remove}; if another tool removed it: apply -e kubespray_full_run=true")
            if is_member and not was_member:
                what = f"{host} was added to {name}, but is already in the cluster: Kubespray can add only new hosts to {name}"
                remove = f"remove it first: playbooks/day2/node/kubernetes.yml -e node={host}"
                raise PlanError(what, fix=f"{remove}; the next apply adds it")
