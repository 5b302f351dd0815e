"""Rules about groups: which there are, who is in them, and what one needs of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.ansible.groups import load_groups
from primus_bootstrap.inventory.schema.names import nearest_group
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import ValidationContext

_IMPLICIT = ("all", "ungrouped")
# A group on the left is of no use without one on the right.
_NEEDS = (
    ("kube_node", "kube_control_plane", "a Kubernetes node has nothing to join"),
    ("workload_node", "primus_watch", "nobody would start a job there"),
    ("alertmanager", "prometheus", "nobody would raise an alert"),
)


def no_hosts(reading: ValidationContext) -> Iterator[Problem]:
    """An inventory without hosts makes every run a success that did nothing."""
    if not reading.hosts:
        yield Problem(reading.shown, 0, "names no host", "add a host under `hosts:` of a group", "no-hosts")


def misspelt_group(reading: ValidationContext) -> Iterator[Problem]:
    """A misspelt group is a group of its own for Ansible: its hosts would silently miss their role."""
    known = load_groups()
    seen: set[str] = set()
    for entry in reading.written.groups:
        if entry.name in known or entry.name in (*_IMPLICIT, *seen):
            continue
        seen.add(entry.name)
        if near := nearest_group(entry.name):
            fix = f"did you mean {near}? (a group of your own needs a name less like it)"
            yield Problem(entry.origin.file, entry.origin.line, f"{entry.name}: no such group", fix, "unknown-group")


def host_without_known_group(reading: ValidationContext) -> Iterator[Problem]:
    """A host that is only in groups of the user's own gets no role but those of every host: most often a wrong group name."""
    known = load_groups()
    covered = {host for name in known for host in reading.groups.get(name, ())}
    own = {
        host: name
        for name, hosts in reading.groups.items()
        if name not in _IMPLICIT and name not in known and not nearest_group(name)
        for host in hosts
    }
    reported = set()
    for entry in reading.written.hosts:
        lost = [host for host in entry.hosts if host in own and host not in covered and host not in reported]
        if lost:
            reported.update(lost)
            shown = lost[0] if len(lost) == 1 else f"{lost[0]} … {lost[-1]}"
            what = f"{shown}: in no group that a role or Kubespray reads, only in {own[lost[0]]}"
            yield Problem(
                entry.origin.file,
                entry.origin.line,
                what,
                "put it into a known group as well: primus-bootstrap schema --groups",
                "own-group-only",
            )


def missing_partner(reading: ValidationContext) -> Iterator[Problem]:
    """Half a cluster is found out here and not after an hour of installing."""
    for group, partner, why in _NEEDS:
        if partner == "kube_control_plane" and kubernetes_is_given(reading):
            continue  # its API may run on hosts that are not ours to name
        if reading.groups.get(group) and not reading.groups.get(partner):
            origin = reading.group_origin(group)
            yield Problem(
                origin.file,
                origin.line,
                f"{group} has hosts and {partner} has none: {why}",
                f"put a host into {partner}",
                "missing-partner",
            )


def kubernetes_is_given(reading: ValidationContext) -> bool:
    """Tell whether somebody else made the Kubernetes cluster, so that its machines are not ours to judge."""
    return any(value_of(one.node) == "existing" for one in reading.merged.by_name.get("kubernetes_provider", ()))


def container_host_of_kubernetes(reading: ValidationContext) -> Iterator[Problem]:
    """Kubernetes owns the container engine of its hosts; a second one would share its cgroups, sockets and disk with it."""
    taken = [host for host in reading.groups.get("container_host", ()) if host in reading.groups.get("k8s_cluster", ())]
    if taken:
        origin = reading.group_origin("container_host")
        shown = taken[0] if len(taken) == 1 else f"{taken[0]} … {taken[-1]}"
        what = f"container_host and k8s_cluster share {len(taken)} hosts ({shown}); Kubernetes owns their container engine"
        yield Problem(origin.file, origin.line, what, "take them out of container_host", "container-host-of-kubernetes")


def etcd_quorum(reading: ValidationContext) -> Iterator[Problem]:
    """Two etcd members survive no more losses than one and four no more than three, and a split leaves no majority."""
    if kubernetes_is_given(reading):
        return
    members = reading.groups.get("etcd", ())
    if members and len(members) % 2 == 0:
        origin = reading.group_origin("etcd")
        shown = ", ".join(members) if len(members) <= 6 else f"{members[0]} … {members[-1]}"
        what = f"etcd has {len(members)} hosts ({shown}); an even number cannot keep quorum"
        yield Problem(origin.file, origin.line, what, "give etcd 1, 3 or 5 hosts", "even-etcd")
    if not members and reading.groups.get("kube_control_plane") and not _etcd_by_kubeadm(reading):
        origin = reading.group_origin("kube_control_plane")
        fix = "give etcd 1, 3 or 5 hosts (`etcd: {children: {kube_control_plane: {}}}`)"
        yield Problem(
            origin.file, origin.line, "kube_control_plane has hosts and etcd has none: Kubernetes has no store", fix, "missing-partner"
        )


def _etcd_by_kubeadm(reading: ValidationContext) -> bool:
    """With `etcd_deployment_type: kubeadm` Kubespray runs etcd on the control plane and reads no group for it."""
    host = reading.groups["kube_control_plane"][0]
    found = reading.merged.of("etcd_deployment_type").get(host)
    if found is None:
        return False
    return is_template(found.node) or is_vaulted(found.node) or value_of(found.node) == "kubeadm"


def bundle_without_mirror(reading: ValidationContext) -> Iterator[Problem]:
    """Hosts that fetch from a bundle alone, and nobody who offers it: the first package would be missing everywhere."""
    stated = next(iter(reading.merged.of("airgap_bundle").values()), None)
    if stated is None or is_template(stated.node) or is_vaulted(stated.node) or not value_of(stated.node):
        return
    if not reading.groups.get("airgap_mirror"):
        what = "airgap_bundle is set and airgap_mirror has no host: nobody would offer the bundle"
        yield Problem(
            stated.origin.file, stated.origin.line, what, "put a host into airgap_mirror, or take airgap_bundle away", "missing-partner"
        )


def driver_beyond_bundle(reading: ValidationContext) -> Iterator[Problem]:
    """With a bundle apt reads no other source, and what a vendor's repository and its key give is in none: the phase gpu would stop."""
    states, bundles = reading.merged.of("gpu_driver_state"), reading.merged.of("airgap_bundle")
    reported: set[Origin] = set()
    for host in reading.groups.get("gpu_node", ()):
        state, bundle = states.get(host), bundles.get(host)
        if state is None or bundle is None or state.origin in reported:
            continue
        if any(is_template(one.node) or is_vaulted(one.node) for one in (state, bundle)):
            continue
        if value_of(state.node) == "installed" and value_of(bundle.node):
            reported.add(state.origin)
            cause = "which fetches from a bundle alone (airgap_bundle), and a bundle holds no vendor's driver"
            what = f"gpu_driver_state is installed for {host}, {cause}"
            fix = "set gpu_driver_state: present, with the driver in the hosts' image or installed while its repository was in reach"
            yield Problem(state.origin.file, state.origin.line, what, fix, "driver-beyond-bundle")


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (
    no_hosts,
    misspelt_group,
    host_without_known_group,
    missing_partner,
    container_host_of_kubernetes,
    etcd_quorum,
    bundle_without_mirror,
    driver_beyond_bundle,
)
