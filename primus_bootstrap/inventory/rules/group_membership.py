"""Rules about groups: which groups exist, which hosts are in them, and which groups need each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.rules.hosts import misspelt_hosts
from primus_bootstrap.inventory.rules.likely_mistakes import stem
from primus_bootstrap.inventory.schema.groups import load_groups
from primus_bootstrap.inventory.schema.names import nearest_group
from primus_bootstrap.inventory.source.yaml_values import is_deferred, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

_IMPLICIT = ("all", "ungrouped")
_UNKNOWN_GROUP = "unknown-group"
# The first group needs hosts in the second one, for this reason.
_NEEDS = (
    ("kube_node", "kube_control_plane", "a Kubernetes node needs a control plane to join"),
    ("workload_node", "primus_watch", "no watcher would start jobs on these hosts"),
    ("alertmanager", "prometheus", "no alert would be raised"),
)


def no_hosts(context: ValidationContext) -> Iterator[Problem]:
    """Report an inventory without hosts; every run of it would succeed and do nothing."""
    if not context.hosts:
        yield Problem(context.display_path, 0, "contains no hosts", "add a host under `hosts:` of a group", "no-hosts")


def misspelt_group(context: ValidationContext) -> Iterator[Problem]:
    """Report a misspelt group. Ansible accepts it as a new group, and its hosts would silently get no role."""
    known = load_groups()
    visited: set[str] = set()
    for entry in context.source_map.groups:
        if entry.name in known or entry.name in (*_IMPLICIT, *visited):
            continue
        visited.add(entry.name)
        if near := nearest_group(entry.name):
            fix = f"did you mean {near}? (if it is a group of your own, choose a name that is less similar)"
            yield entry.origin.problem(f"{entry.name}: no such group", fix, _UNKNOWN_GROUP)


def without_consequences(context: ValidationContext, problems: Sequence[Problem]) -> list[Problem]:
    """Leave out the problems that name a group whose hosts are in a group with a misspelt name."""
    meant = {nearest_group(entry.name) for entry in context.source_map.groups if entry.name not in load_groups()}
    lost = [name for name in meant if name and not context.groups.get(name)]
    named = re.compile(rf"\b(?:{'|'.join(lost)})\b") if lost else None
    return [one for one in problems if named is None or one.rule == _UNKNOWN_GROUP or not named.search(f"{one.what} {one.fix}")]


def host_without_known_group(context: ValidationContext) -> Iterator[Problem]:
    """Report a host that no phase serves: it is in no group, or only in groups of the user's own.

    Usually the name of a group is wrong. An inventory without any known group is accepted: its hosts get the phases for all hosts.
    """
    known = load_groups()
    covered = {host for name in known for host in context.groups.get(name, ())}
    site_groups: dict[str, list[str]] = {}
    misspelt: set[str] = set()
    for name, members in context.groups.items():
        if name in known or name in _IMPLICIT:
            continue
        if nearest_group(name):
            misspelt.update(members)
        else:
            for host in members:
                site_groups.setdefault(host, []).append(name)
    fix = "add the host to one of the groups that `primus-bootstrap schema --groups` lists"
    # Other rules report hosts of a misspelt group, and hosts whose name is misspelt in a group.
    reported = covered | (misspelt - set(site_groups)) | set(misspelt_hosts(context).values())
    for entry in context.source_map.hosts:
        hosts = [host for host in entry.hosts if host not in reported]
        own = site_groups.get(hosts[0], []) if hosts else []
        hosts = [host for host in hosts if site_groups.get(host, []) == own]
        reported.update(hosts)
        if own:
            groups = own[0] if len(own) == 1 else f"{', '.join(own[:-1])} and {own[-1]}"
            what = f"{_first_and_last(hosts)}: only in {groups}, which neither a role nor Kubespray reads"
            yield entry.origin.problem(what, fix, "own-group-only")
        elif hosts and covered:
            what = f"{_first_and_last(hosts)}: in no group, so no phase would install a service on it"
            yield entry.origin.problem(what, _other_name(context, hosts[0]) + fix, "no-group")


def _other_name(context: ValidationContext, host: str) -> str:
    """Return the question whether a host without an address, of the same kind, is this one with a wrong number."""
    addressed = context.variable_index.by_host("ansible_host")
    alike = [name for name in context.hosts if name not in addressed and stem(name) == stem(host)]
    if host not in addressed or not alike:
        return ""
    origin = context.host_origins[alike[0]]
    return f"if {alike[0]} in line {origin.line} of {origin.file} is this host, correct its name there; otherwise "


def missing_partner(context: ValidationContext) -> Iterator[Problem]:
    """Report a group that has hosts but needs hosts in another group."""
    for group, partner, reason in _NEEDS:
        if partner == "kube_control_plane" and is_existing_kubernetes(context):
            continue  # the control plane of an existing cluster need not be in hosts.yaml
        if context.groups.get(group) and not context.groups.get(partner):
            what = f"{group} has hosts and {partner} has none: {reason}"
            yield context.group_origin(group).problem(what, f"add a host to {partner}", "missing-partner")


def is_existing_kubernetes(context: ValidationContext) -> bool:
    """Return whether this project did not create the Kubernetes cluster, so that its machines are not checked."""
    return any(value_of(one.node) == "existing" for one in context.variable_index.by_name.get("kubernetes_provider", ()))


def container_host_of_kubernetes(context: ValidationContext) -> Iterator[Problem]:
    """Report hosts of Kubernetes in `container_host`; a second container engine would share cgroups, sockets and disk with the first."""
    kubernetes = set(context.groups.get("k8s_cluster", ()))
    shared = [host for host in context.groups.get("container_host", ()) if host in kubernetes]
    if shared:
        subject = f"host {shared[0]} is" if len(shared) == 1 else f"{len(shared)} hosts ({_first_and_last(shared)}) are"
        what = f"{subject} in both container_host and k8s_cluster; Kubernetes manages the container engine of its hosts"
        fix = f"remove {'it' if len(shared) == 1 else 'them'} from container_host"
        yield context.group_origin("container_host").problem(what, fix, "container-host-of-kubernetes")


def etcd_quorum(context: ValidationContext) -> Iterator[Problem]:
    """Report an even number of etcd hosts, which tolerates no more failures than one host less, and a missing etcd."""
    if is_existing_kubernetes(context):
        return
    members = context.groups.get("etcd", ())
    if members and len(members) % 2 == 0:
        shown = ", ".join(members) if len(members) <= 6 else _first_and_last(members)
        what = f"etcd has {len(members)} hosts ({shown}); an even number cannot keep quorum"
        yield context.group_origin("etcd").problem(what, "give etcd 1, 3 or 5 hosts", "even-etcd")
    if not members and context.groups.get("kube_control_plane") and not _etcd_by_kubeadm(context):
        what = "kube_control_plane has hosts and etcd has none: Kubernetes would have no data store"
        fix = "add 1, 3 or 5 hosts to etcd (`etcd: {children: {kube_control_plane: {}}}`)"
        yield context.group_origin("kube_control_plane").problem(what, fix, "missing-partner")


def _etcd_by_kubeadm(context: ValidationContext) -> bool:
    """Return whether Kubespray runs etcd on the control plane and does not read the group `etcd`."""
    host = context.groups["kube_control_plane"][0]
    definition = context.variable_index.by_host("etcd_deployment_type").get(host)
    return definition is not None and (is_deferred(definition.node) or value_of(definition.node) == "kubeadm")


def bundle_without_mirror(context: ValidationContext) -> Iterator[Problem]:
    """Report a bundle without a host that serves it; every download of a package would fail."""
    definition = next(iter(context.variable_index.by_host("airgap_bundle").values()), None)
    if definition is None or is_deferred(definition.node) or not value_of(definition.node):
        return
    if not context.groups.get("airgap_mirror"):
        what = "airgap_bundle is set and airgap_mirror has no hosts: no host would serve the bundle"
        yield definition.origin.problem(what, "add a host to airgap_mirror, or delete airgap_bundle", "missing-partner")


def driver_not_in_bundle(context: ValidationContext) -> Iterator[Problem]:
    """Report hosts that install the GPU driver from a bundle; no bundle contains packages of a vendor's repository."""
    states, bundles = context.variable_index.by_host("gpu_driver_state"), context.variable_index.by_host("airgap_bundle")
    reported: set[Origin] = set()
    for host in context.groups.get("gpu_node", ()):
        state, bundle = states.get(host), bundles.get(host)
        if state is None or bundle is None or state.origin in reported or any(is_deferred(one.node) for one in (state, bundle)):
            continue
        if value_of(state.node) == "installed" and value_of(bundle.node):
            reported.add(state.origin)
            what = f"gpu_driver_state is installed for {host}, but airgap_bundle is set and a bundle contains no GPU driver"
            fix = "set gpu_driver_state: present, and install the driver in the image of the hosts"
            yield state.origin.problem(what, fix, "driver-beyond-bundle")


def _first_and_last(hosts: Sequence[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{hosts[0]} … {hosts[-1]}"


RULES: tuple[Rule, ...] = (
    no_hosts,
    misspelt_group,
    host_without_known_group,
    missing_partner,
    container_host_of_kubernetes,
    etcd_quorum,
    bundle_without_mirror,
    driver_not_in_bundle,
)
