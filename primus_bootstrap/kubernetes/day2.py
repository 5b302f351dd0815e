"""What a day-2 verb refuses before any host is contacted: a step to another version, a host of a cluster that is not ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.kubernetes.preflight import judge_upgrade, provider, refuse_foreign

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from primus_bootstrap.inventory.cluster import Cluster

# Groups whose hosts are machines of the Kubernetes cluster.
MACHINES = frozenset({"kube_control_plane", "kube_node", "etcd", "calico_rr", "k8s_cluster"})


def refuse_step(cluster: Cluster, version: str) -> None:
    """Refuse what can be known of an upgrade without the API: outside the window, two minors at once, not what hosts.yaml states.

    Raises:
        PlanError: with the fix; no host was contacted.
    """
    judge_upgrade(last_versions(cluster), version)
    first = next(iter(cluster.groups.get("kube_control_plane", ())), "")
    stated = str(cluster.view.variables(first).get("kube_version", "")) if first else ""
    if stated != version:
        what = f"the upgrade is to {version}, and hosts.yaml says kube_version {stated or '(nothing)'}"
        raise PlanError(what, fix=f"set kube_version to {version} there, then the same again; apply alone would refuse it")


def last_versions(cluster: Cluster) -> tuple[str, ...]:
    """Return the version that Kubespray brought last; none where it ran from elsewhere. The nodes themselves are asked later."""
    try:
        said = json.loads((cluster.state_dir / "kubespray/done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    version = str(said.get("version", "")) if isinstance(said, dict) else ""
    return (version,) if version else ()


def refuse_foreign_machine(cluster: Cluster, groups: Iterable[str], verb: str) -> None:
    """Refuse to bring a machine into, or take one out of, a Kubernetes that somebody else makes.

    Raises:
        PlanError: `kubernetes_provider` is `existing`, and the host is one of the cluster's machines.
    """
    if MACHINES.intersection(groups):
        refuse_foreign(cluster, verb)


def refuse_part(cluster: Cluster, hosts: Collection[str]) -> None:
    """Refuse to reset a part of Kubernetes: Kubespray's reset wipes every host, and a part of etcd would lose its quorum.

    Raises:
        PlanError: some of its machines are among these hosts, and some are not.
    """
    machines = {host for name in MACHINES for host in cluster.groups.get(name, ())}
    staying, going = sorted(machines.difference(hosts)), sorted(machines.intersection(hosts))
    if going and staying and provider(cluster) != "existing":
        what = f"{len(staying)} of {len(machines)} hosts of Kubernetes are left out ({staying[0]}), and its reset wipes all"
        raise PlanError(what, fix=f"`node remove {going[0]}` takes one host out; leave out --limit to reset the whole cluster")
