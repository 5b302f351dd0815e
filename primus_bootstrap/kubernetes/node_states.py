"""What Kubernetes says of hosts: in service or not, by whom and why. A server that gives no answer leaves them unknown."""

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
    """A host's Node in the words that people read; `quarantine` is the record that it carries, empty where it has none."""

    state: str
    reason: str = ""
    quarantine: Mapping[str, Any] = field(default_factory=dict)


def node_hosts(cluster: Cluster) -> frozenset[str]:
    """Return the hosts that are Nodes, or are to be."""
    return frozenset(host for group in NODE_GROUPS for host in cluster.groups.get(group, ()))


def kubeconfig_of(cluster: Cluster, host: str) -> Path:
    """Return the file with which this machine reaches the cluster: the stated one, else what Kubespray leaves."""
    stated = cluster.view.variables(host).get("kubernetes_kubeconfig")
    folder = cluster.path.parent
    return Path(folder, str(stated)) if stated else Path(cluster.state_dir, "kubespray", "artifacts", "admin.conf")


def ask_states(cluster: Cluster, hosts: Sequence[str]) -> dict[str, NodeState]:
    """Return the state of those hosts that are Nodes, by one list."""
    members = node_hosts(cluster)
    asked = [host for host in hosts if host in members]
    if not asked:
        return {}
    try:
        nodes = read_nodes(Server(kubeconfig_of(cluster, asked[0])))
    except ApiError as error:
        return dict.fromkeys(asked, NodeState("unknown", error.what))
    names = {host: str(cluster.view.variables(host).get("kube_override_hostname") or host) for host in asked}
    return {host: state_of(nodes.get(name)) for host, name in names.items()}


def state_of(node: Mapping[str, Any] | None) -> NodeState:
    """Return a Node's state; None is a host that the cluster does not know."""
    if node is None:
        return NodeState("no node", "it has not joined")
    conditions = {one["type"]: one for one in (node.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {"status": "Unknown", "message": "its kubelet has said nothing"}
    marks = marks_of(node)
    states, reasons = [], [f"{mark}: {record['reason']} ({record['owner']})" for mark, record in marks.items()]
    if ready["status"] != "True":
        states.append("not ready")
        reasons.append(str(ready.get("message") or ready.get("reason") or ""))
    if has_foreign_cordon(node):
        states.append("cordoned by somebody else")
    elif is_cordoned(node):
        states.append("cordoned")
    told = conditions.get("PrimusHealthy") or {}
    if told.get("status") == "Unknown":
        reasons.append(f"health unknown: {told.get('message') or 'no reason given'}")
    return NodeState(", ".join(states) or "ready", "; ".join(filter(None, reasons)), mark_of(node, "quarantine"))
