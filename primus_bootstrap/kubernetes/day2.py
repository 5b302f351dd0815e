"""Check day-2 operations before any host is contacted: version steps, hosts of an existing cluster, partial resets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.kubernetes.preflight import check_upgrade, provider, refuse_foreign, release_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from primus_bootstrap.inventory.cluster import Cluster

# Groups whose hosts are machines of the Kubernetes cluster.
MACHINES = frozenset({"kube_control_plane", "kube_node", "etcd", "calico_rr", "k8s_cluster"})


def check_upgrade_step(cluster: Cluster, version: str) -> None:
    """Check an upgrade without the API server: the supported versions, one minor version at a time, and kube_version in hosts.yaml.

    Raises:
        PlanError: One of these is violated.
    """
    check_upgrade(last_versions(cluster), version, release_of(cluster))
    first = next(iter(cluster.groups.get("kube_control_plane", ())), "")
    stated = str(cluster.view.variables(first).get("kube_version", "")) if first else ""
    if stated != version:
        what = f"the upgrade is to {version}, but kube_version in hosts.yaml is {stated or 'not set'}"
        raise PlanError(what, fix=f"set `kube_version: {version}` in hosts.yaml and run this again")


def last_versions(cluster: Cluster) -> tuple[str, ...]:
    """Return the version that Kubespray installed last from this machine, or nothing. The nodes are checked later."""
    try:
        state = json.loads((cluster.state_dir / "kubespray/done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    version = str(state.get("version", "")) if isinstance(state, dict) else ""
    return (version,) if version else ()


def refuse_foreign_machine(cluster: Cluster, groups: Iterable[str], verb: str) -> None:
    """Fail if a host would be added to or removed from an existing Kubernetes cluster.

    Raises:
        PlanError: `kubernetes_provider` is `existing` and the host is in one of the groups of Kubernetes.
    """
    if MACHINES.intersection(groups):
        refuse_foreign(cluster, verb)


def refuse_partial_reset(cluster: Cluster, hosts: Collection[str]) -> None:
    """Fail if a reset concerns only some hosts of Kubernetes: Kubespray resets all, and a part of etcd would lose its quorum.

    Raises:
        PlanError: Some of the hosts of Kubernetes are not among these hosts.
    """
    machines = {host for name in MACHINES for host in cluster.groups.get(name, ())}
    others, chosen = sorted(machines.difference(hosts)), sorted(machines.intersection(hosts))
    if chosen and others and provider(cluster) != "existing":
        what = f"{len(others)} of {len(machines)} hosts of Kubernetes are excluded ({others[0]}), but a reset concerns all of them"
        raise PlanError(what, fix=f"run `node remove {chosen[0]}` to remove one host, or omit --limit to reset the whole cluster")
