"""Read the state of hosts as Nodes: ready, cordoned or marked, and why. Without an answer the state is unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.kubernetes.api import ApiError, Server
from primus_bootstrap.kubernetes.node_marks import has_foreign_cordon, is_cordoned, mark_of, marks_of
from primus_bootstrap.kubernetes.nodes import read_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.inventory.cluster import Cluster

NODE_GROUPS = ("kube_control_plane", "kube_node")


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a host's Node for display, and its quarantine record (empty without one)."""

    state: str
    reason: str = ""
    quarantine: Mapping[str, Any] = field(default_factory=dict)


def node_hosts(cluster: Cluster) -> frozenset[str]:
    """Return the hosts of the groups whose hosts are Nodes."""
    return frozenset(host for group in NODE_GROUPS for host in cluster.groups.get(group, ()))


def kubeconfig_of(cluster: Cluster, host: str) -> Path:
    """Return the kubeconfig of the cluster: kubernetes_kubeconfig, or else Kubespray's."""
    stated = cluster.view.variables(host).get("kubernetes_kubeconfig")
    folder = cluster.path.parent
    return Path(folder, str(stated)) if stated else Path(cluster.state_dir, "kubespray", "artifacts", "admin.conf")


def read_states(cluster: Cluster, hosts: Sequence[str]) -> dict[str, NodeState]:
    """Return the state of those hosts that are Nodes, with one list."""
    all_nodes = node_hosts(cluster)
    members = [host for host in hosts if host in all_nodes]
    if not members:
        return {}
    try:
        nodes = read_nodes(Server(kubeconfig_of(cluster, members[0])))
    except ApiError as error:
        return dict.fromkeys(members, NodeState("unknown", error.what))
    names = {host: str(cluster.view.variables(host).get("kube_override_hostname") or host) for host in members}
    return {host: state_of(nodes.get(name)) for host, name in names.items()}


def state_of(node: Mapping[str, Any] | None) -> NodeState:
    """Return the state of a Node; None means that the cluster has no such Node."""
    if node is None:
        return NodeState("no node", "it has not joined")
    conditions = {condition["type"]: condition for condition in (node.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {"status": "Unknown", "message": "its kubelet has not reported"}
    marks = marks_of(node)
    states, reasons = [], [f"{mark}: {record['reason']} ({record['owner']})" for mark, record in marks.items()]
    if ready["status"] != "True":
        states.append("not ready")
        reasons.append(str(ready.get("message") or ready.get("reason") or ""))
    if has_foreign_cordon(node):
        states.append("cordoned by somebody else")
    elif is_cordoned(node):
        states.append("cordoned")
    health = conditions.get("PrimusHealthy") or {}
    if health.get("status") == "Unknown":
        reasons.append(f"health unknown: {health.get('message') or 'no reason given'}")
    return NodeState(", ".join(states) or "ready", "; ".join(filter(None, reasons)), mark_of(node, "quarantine"))
