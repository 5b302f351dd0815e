"""Bring the labels and taints of the inventory to the Nodes: one list, then a request or two for each Node that differs."""

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
class Outcome:
    """Which Nodes were changed (would be, in a dry run), which hosts have no Node, and what changed of each as (before, after)."""

    changed: tuple[str, ...]
    absent: tuple[str, ...]
    differences: tuple[tuple[dict[str, Any], dict[str, Any]], ...]


def wishes_of(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, rules.DesiredNode]:
    """Return what the inventory wants, by Node; `hosts` are each host's variables, its Node's name among them.

    Raises:
        PlanError: some labels or taints are none; all of them at once.
    """
    wishes, problems = {}, []
    for host, variables in hosts.items():
        try:
            wishes[str(variables.get("kube_override_hostname") or host)] = rules.wish_of(host, variables)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise PlanError("; ".join(problems[:_NAMED]), fix="mend them in hosts.yaml, then the same again")
    return wishes


def bring(api: Api, wishes: Mapping[str, rules.DesiredNode], *, dry_run: bool = False, differences: bool = False) -> Outcome:
    """Give every Node what it is to have, and read it back; a host without a Node is named and is no error.

    Raises:
        RunError: Nodes that could not be changed, or a field that the server dropped.
    """
    nodes = read_nodes(api)
    present = {name: wish for name, wish in wishes.items() if name in nodes}
    found = {name: rules.difference(nodes[name], wish) for name, wish in present.items()}
    changed = [name for name, each in found.items() if each.apply or each.taints]
    lost: dict[str, list[str]] = {}

    def give(name: str) -> None:
        node, wish = nodes[name], present[name]
        if found[name].apply:
            node = api.patch(node_path(name), rules.apply_object(name, wish), kind=APPLY)
        if stale := [key for key in found[name].removed if key in (node["metadata"].get("labels") or {})]:
            node = api.patch(node_path(name), {"metadata": {"labels": dict.fromkeys(stale)}})
        node = change_node(api, node, lambda seen: rules.taints_patch(seen, wish))
        if missing := rules.missing_after(node, wish):
            lost[name] = missing

    if not dry_run:
        for_each(changed, give)
    if lost:
        first = min(lost)
        what = f"the API server took the change of {len(lost)} Nodes and dropped some of it; {first} lacks {', '.join(lost[first])}"
        raise RunError(what, fix="see which admission webhook or controller changes Nodes")
    keys = {name: rules.owned_labels(nodes[name]) | dict(present[name].labels).keys() for name in changed} if differences else {}
    shown = [
        ({"name": name, **rules.shown(nodes[name], keys[name])}, rules.shown_after(nodes[name], present[name], keys[name])) for name in keys
    ]
    return Outcome(tuple(changed), tuple(sorted(wishes.keys() - nodes.keys())), tuple(shown))
