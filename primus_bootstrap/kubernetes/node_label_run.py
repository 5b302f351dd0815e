"""Apply the labels and taints of the inventory to the Nodes, with one list and up to three requests per changed Node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.kubernetes import node_labels as rules
from primus_bootstrap.kubernetes.api import APPLY
from primus_bootstrap.kubernetes.nodes import change_node, for_each, node_path, read_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.kubernetes.api import Api

_NAMED = 5


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """The Nodes that were changed (in a dry run: would be), the hosts without a Node, and the differences as (before, after)."""

    changed: tuple[str, ...]
    absent: tuple[str, ...]
    differences: tuple[tuple[dict[str, Any], dict[str, Any]], ...]


def desired_nodes(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, rules.DesiredNode]:
    """Return the desired labels and taints by Node, from the variables of each host.

    Raises:
        PlanError: Labels or taints are invalid; the error names all of them.
    """
    desired, problems = {}, []
    for host, variables in hosts.items():
        try:
            desired[str(variables.get("kube_override_hostname") or host)] = rules.desired_node(host, variables)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise PlanError("; ".join(problems[:_NAMED]), fix="correct node_labels and node_taints in hosts.yaml and run this again")
    return desired


def update_nodes(api: Api, desired: Mapping[str, rules.DesiredNode], *, dry_run: bool = False, differences: bool = False) -> NodeUpdate:
    """Apply the desired labels and taints to every Node and check the result. A host without a Node is not an error.

    Raises:
        RunError: Nodes could not be changed, or the server dropped a label or taint.
    """
    nodes = read_nodes(api)
    present = {name: target for name, target in desired.items() if name in nodes}
    found = {name: rules.difference(nodes[name], target) for name, target in present.items()}
    changed = [name for name, change in found.items() if change.apply or change.taints]
    lost: dict[str, list[str]] = {}

    def update(name: str) -> None:
        node, target = nodes[name], present[name]
        if found[name].apply:
            node = api.patch(node_path(name), rules.apply_object(name, target), kind=APPLY)
        if stale := [key for key in found[name].removed if key in (node["metadata"].get("labels") or {})]:
            node = api.patch(node_path(name), {"metadata": {"labels": dict.fromkeys(stale)}})
        node = change_node(api, node, lambda current: rules.taints_patch(current, target))
        if missing := rules.missing_after(node, target):
            lost[name] = missing

    if not dry_run:
        for_each(changed, update)
    if lost:
        first = min(lost)
        what = f"the API server stored {len(lost)} Nodes without all labels and taints: {first} lacks {', '.join(lost[first])}"
        raise RunError(what, fix="find the admission webhook or controller that changes Nodes: kubectl get mutatingwebhookconfigurations")
    keys = {name: rules.owned_labels(nodes[name]) | dict(present[name].labels).keys() for name in changed} if differences else {}
    shown = [
        ({"name": name, **rules.shown(nodes[name], keys[name])}, rules.shown_after(nodes[name], present[name], keys[name])) for name in keys
    ]
    return NodeUpdate(tuple(changed), tuple(sorted(desired.keys() - nodes.keys())), tuple(shown))
