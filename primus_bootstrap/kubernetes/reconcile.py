"""What has to run, from what ran last and what hosts.yaml says now: an unchanged cluster costs one look, a new worker only itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.ansible.groups import load_kubespray_variables
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.preflight import parse_version

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from primus_bootstrap.kubernetes.commands import Command

_GROUPS = ("kube_control_plane", "etcd", "kube_node", "calico_rr")
# Variables of Kubespray whose change does not call for cluster.yml: a role of ours keeps them, they are judged apart, or
# upgrade-cluster.yml and remove-node.yml alone read them.
_NOT_COUNTED = ("node_labels", "node_taints", "kube_version")
_OF_DAY_2 = ("drain_", "upgrade_node_")
# Groups whose first host is where Kubespray reads the cluster's own state, and whose hosts it has to let in and take out by itself.
_QUORUM = ("kube_control_plane", "etcd")
_SERVING = (*_QUORUM, "calico_rr")


@dataclass(frozen=True, slots=True)
class ClusterState:
    """An inventory as Kubespray reads it.

    `hosts` maps a host to the sum of its variables and groups (empty where it has yet to be told who serves), `groups` a group to its
    hosts, `members` a host of etcd to its name there. `left` maps a host that was taken out to the groups in which it served, until
    those who stay were told. `controller_fetches`: hosts cannot download anything themselves (`download_localhost`).
    """

    release: str
    version: str
    groups: Mapping[str, tuple[str, ...]]
    hosts: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    controller_fetches: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)


def state_from_json(data: Mapping[str, Any]) -> ClusterState:
    """Read a state back."""
    groups = {name: tuple(hosts) for name, hosts in data["groups"].items()}
    left = {host: tuple(names) for host, names in data.get("left", {}).items()}
    return ClusterState(str(data["release"]), str(data["version"]), groups, dict(data["hosts"]), dict(data.get("members", {})), left)


def state_of(listed: Mapping[str, Any], release: str) -> ClusterState:
    """Return the state of what `ansible-inventory --list` prints; no value of a variable is kept, only a sum."""
    groups = {name: tuple(_members(listed, name)) for name in _GROUPS}
    known = listed.get("_meta", {}).get("hostvars", {})
    hosts = {}
    for host in dict.fromkeys(host for members in groups.values() for host in members):
        told = {name: value for name, value in known.get(host, {}).items() if _counts(name)}
        said = json.dumps([told, [name for name in _GROUPS if host in groups[name]]], sort_keys=True, default=str)
        hosts[host] = hashlib.sha256(said.encode()).hexdigest()
    first = next(iter(groups["kube_control_plane"]), "")
    # Kubespray's own default is the place in the group (roles/kubespray_defaults/defaults/main/main.yml).
    members = {host: str(known.get(host, {}).get("etcd_member_name") or f"etcd{place}") for place, host in enumerate(groups["etcd"], 1)}
    told = known.get(first, {})
    fetches = told.get("download_localhost") is True
    return ClusterState(release, str(told.get("kube_version", "")), groups, hosts, members, controller_fetches=fetches)


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
class KubesprayPlan:
    """What has to run, and the state to note once all of it has ended well."""

    commands: tuple[Command, ...]
    state: ClusterState


def choose(
    before: ClusterState | None, now: ClusterState, present: Collection[str], *, unknown: Sequence[str] = (), whole: bool = False
) -> KubesprayPlan:
    """Return what has to run; nothing where nothing changed since it last ended well.

    Args:
        before: what last ended well.
        now: what hosts.yaml says.
        present: the hosts that may be touched: of a run for one node that node, otherwise those that were not lost before.
        unknown: hosts whose facts no run has kept.
        whole: run the full play whatever changed.

    Raises:
        PlanError: another version of Kubernetes is wanted, another first control plane, or a first run without all hosts; a host
            serves, or serves no more, that Kubespray has not let in or taken out.
    """
    away = [host for host in now.hosts if host not in present]
    if before is None:
        _refuse_part(away)
        return KubesprayPlan(commands.create(), now)
    _refuse_upgrade(before, now)
    _refuse_another_first(before, now)
    _refuse_renamed(before, now)
    if not whole:
        _refuse_regrouped(before, now)
    new = [host for host in now.hosts if host not in before.hosts and host in present]
    joined, left = {name for host in new for name in _serving(now, host)}, _left(before, now)
    if joined or left or _moved(before, now) or before.release != now.release:
        return _tell(before, now, present, joined=joined, left=left)
    changed = [host for host, told in before.hosts.items() if host in present and now.hosts.get(host, told) != told]
    noted = _noted(before, now, present)
    if whole or changed:
        full = commands.create(",".join(host for host in now.hosts if host in present) if away else "")
        serving = set(now.groups["kube_control_plane"])
        return KubesprayPlan((*full, *(commands.renew_api_servers(_lost(now, present)) if serving.intersection(changed) else ())), noted)
    return KubesprayPlan(commands.add_workers(new, unknown=unknown, controller_fetches=now.controller_fetches) if new else (), noted)


def _serving(state: ClusterState, host: str) -> tuple[str, ...]:
    return tuple(name for name in _SERVING if host in state.groups[name])


def _left(before: ClusterState, now: ClusterState) -> set[str]:
    """Return the groups that a host has left since those who stay were told: taken out by us, or by somebody else."""
    known = {**{host: _serving(before, host) for host in before.hosts}, **before.left}
    return {name for host, names in known.items() for name in names if host not in now.groups[name]}


def _moved(before: ClusterState, now: ClusterState) -> bool:
    return any(before.groups[name][:1] != now.groups[name][:1] for name in _QUORUM)


def _tell(
    before: ClusterState, now: ClusterState, present: Collection[str], *, joined: Collection[str], left: Collection[str]
) -> KubesprayPlan:
    """Tell everybody who serves. Of a run for the whole cluster, those who are lost are told by a later one."""
    away = [host for host in now.hosts if host not in present]
    firsts = {host for name in _QUORUM for host in now.groups[name][:1]}
    limited = bool(away) and firsts <= set(present)
    limit = ",".join(host for host in now.hosts if host in present) if limited else ""
    lost = _lost(now, present) if limited else ()
    if "etcd" in joined:
        made = commands.add_etcd_member(limit, lost=lost)
    elif joined:
        made = commands.add_control_plane(limit) + (commands.renew_api_servers(lost) if "etcd" in left else ())
    elif left or _moved(before, now):
        made = commands.settle(limit, members="etcd" in left, lost=lost)
    else:
        made = commands.create(limit)
    noted = _noted(before, now, present)
    untold = {host: "" for host in away if host in before.hosts}
    return KubesprayPlan(made, replace(noted, hosts={**noted.hosts, **untold}) if limited else now)


def _lost(now: ClusterState, present: Collection[str]) -> tuple[str, ...]:
    return tuple(host for host in now.hosts if host not in present and _serving(now, host))


def _noted(before: ClusterState, now: ClusterState, present: Collection[str]) -> ClusterState:
    """Return what is true after a run for some hosts: the others are as they were."""
    kept = {
        host: told if host in present else before.hosts[host] for host, told in now.hosts.items() if host in present or host in before.hosts
    }
    still = {host: names for host, names in before.left.items() if host not in present and any(host in now.groups[name] for name in names)}
    return replace(now, hosts=kept, left=still)


def without(state: ClusterState, host: str) -> ClusterState:
    """Return the state once a host has left; while it answers and stands in hosts.yaml, the next apply lets it join again.

    One that served is kept in mind: those who stay are told by the next apply that no longer finds it in hosts.yaml. Not before: the
    full play is for every host that stands there.
    """
    groups = {name: tuple(one for one in hosts if one != host) for name, hosts in state.groups.items()}
    hosts = {one: told for one, told in state.hosts.items() if one != host}
    members = {one: name for one, name in state.members.items() if one != host}
    served = _serving(state, host) or state.left.get(host, ())
    return replace(state, groups=groups, hosts=hosts, members=members, left={**state.left, **({host: served} if served else {})})


def refuse_removal(state: ClusterState, host: str) -> None:
    """Refuse to take out what Kubespray cannot.

    Raises:
        PlanError: it is the first control plane or etcd member, or none of the cluster's hosts.
    """
    if host not in state.hosts:
        raise PlanError(f"{host} is no host of this Kubernetes", fix="name a host of kube_control_plane, kube_node or etcd")
    for name in ("kube_control_plane", "etcd"):
        if state.groups[name][:1] == (host,):
            what = f"{host} is the first host of {name}: the cluster's own state is read there, and Kubespray cannot take it out"
            raise PlanError(what, fix=f"move it to the end of {name} in hosts.yaml, apply unless it is dead, then the same again")
    if host in state.groups["etcd"] and len(state.groups["etcd"]) <= 2:
        what = f"etcd has {len(state.groups['etcd'])} members: without {host} the rest has no majority"
        raise PlanError(what, fix="let another member join first")


def refuse_recovery(state: ClusterState) -> None:
    """Refuse a recovery that would end with less than it began with.

    v2.31's recover_lost_quorum.yml removes etcd's data, then calls `etcdctl snapshot restore`, which etcd 3.6 no longer has
    (https://github.com/etcd-io/etcd/pull/13809). Kubernetes 1.35 comes with 3.6 there, older ones with 3.5.

    Raises:
        PlanError: the cluster has etcd 3.6.
    """
    if parse_version(state.version) >= (1, 35, 0):
        what = f"Kubernetes {state.version} has etcd 3.6, whose data Kubespray's recovery would remove and could not restore"
        raise PlanError(
            what, fix="put the surviving hosts first and take the lost ones out of hosts.yaml, then: primus-bootstrap restore etcd"
        )


def _refuse_part(away: Sequence[str]) -> None:
    if away:
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        what = f"{away[0]}{more} did not get here, and the first run makes the cluster of all its hosts"
        raise PlanError(what, fix="bring them up, or take them out of hosts.yaml and add them later")


def _refuse_upgrade(before: ClusterState, now: ClusterState) -> None:
    if before.version != now.version:
        what = f"kube_version went from {before.version} to {now.version}, and apply does not upgrade: nodes would not be drained"
        raise PlanError(what, fix=f"primus-bootstrap upgrade kubernetes, or set kube_version back to {before.version}")


def _refuse_another_first(before: ClusterState, now: ClusterState) -> None:
    """New control planes and members are appended; one that comes first would be taken for the cluster's origin."""
    for name in ("kube_control_plane", "etcd"):
        old = [host for host in before.groups[name] if host in now.groups[name]]
        if now.groups[name] and now.groups[name][0] not in before.groups[name]:
            what = f"{name} begins with {now.groups[name][0]}, which is new: the first host is where the cluster's own state is read"
            raise PlanError(what, fix=f"put {old[0] if old else 'a host that serves already'} first and append {now.groups[name][0]}")


def _refuse_renamed(before: ClusterState, now: ClusterState) -> None:
    """A member's name is its place in the group where nobody states it; Kubespray would rename the members that moved up."""
    renamed = [host for host, name in before.members.items() if host in now.members and now.members[host] != name]
    if renamed:
        host = renamed[0]
        what = f"{host} is {before.members[host]} in etcd, and would be {now.members[host]}: the order of the group etcd names its members"
        stated = ", ".join(f"etcd_member_name: {before.members[one]} for {one}" for one in before.members if one in now.members)
        raise PlanError(what, fix=f"write the names down in hosts.yaml, {stated}")


def _refuse_regrouped(before: ClusterState, now: ClusterState) -> None:
    """Kubespray lets a host that it knows into neither group, and hosts.yaml alone takes none out: a member would stay in etcd for ever."""
    for name in _QUORUM:
        for host in before.hosts:
            was, is_now = host in before.groups[name], host in now.groups[name]
            if was and not is_now:
                what = f"{host} no longer stands in {name}, and Kubespray has not taken it out: the cluster would go on counting on it"
                taken = f"put it back, run playbooks/day2/node/kubernetes.yml -e node={host} (docs/kubernetes-day2.md), then take it out"
                raise PlanError(what, fix=f"{taken}; where another tool did that: apply -e kubespray_whole=true")
            if is_now and not was:
                what = f"{host} is in {name} now, and in the cluster already: only a host that is not can join there"
                taken = f"take it out first: playbooks/day2/node/kubernetes.yml -e node={host}"
                raise PlanError(what, fix=f"{taken}; the next apply lets it join")
