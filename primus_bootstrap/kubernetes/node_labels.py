"""Compute the labels and taints of Nodes from the inventory, and the changes that a Node needs.

Server-side apply records which labels belong to this project: labels of others stay, and labels that the inventory no longer contains
are removed. The server stores all taints of a Node as one value, so an annotation records the project's taints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.rules.kubernetes_names import label_fault, split_taint, taint_fault
from primus_bootstrap.kubernetes.api import FIELD_MANAGER
from primus_bootstrap.kubernetes.node_marks import DOMAIN, annotations_of, name_of, taints_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    Node = Mapping[str, Any]

RACK, SWITCH, GPU_MODEL = f"{DOMAIN}/rack", f"{DOMAIN}/switch", f"{DOMAIN}/gpu-model"
# Of the hosts in kube_infra_node; playbooks/vars/kubernetes.yml passes it to the charts as node selector.
INFRA = f"{DOMAIN}/infra"
TAINTS = f"{DOMAIN}/inventory-taints"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_VALUE_CHARS = 63
# The manager name in managedFields of `kubectl label`, with which Kubespray applies the same labels from the same inventory.
_KUBECTL = "kubectl"


@dataclass(frozen=True, slots=True)
class DesiredNode:
    """The desired labels and taints of one Node. `taints` are (key, value, effect)."""

    labels: tuple[tuple[str, str], ...]
    taints: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The changes of one Node: whether to apply labels, which labels to remove, and whether to change taints."""

    apply: bool
    removed: tuple[str, ...]
    taints: bool


def label_value(text: str) -> str:
    """Return a text as a valid value of a label; invalid characters become dashes."""
    return _UNFIT.sub("-", text)[:_VALUE_CHARS].strip("-._")


def desired_node(host: str, variables: Mapping[str, Any]) -> DesiredNode:
    """Return the desired labels and taints of a host: those of the inventory, and labels for rack, switch, GPU model and infrastructure.

    Raises:
        ValueError: A label or taint is invalid; the message has the fix.
    """
    ours = {RACK: variables.get("rack"), SWITCH: variables.get("slurm_switch"), GPU_MODEL: variables.get("gpu_env_model")}
    ours[INFRA] = "true" if "kube_infra_node" in (variables.get("group_names") or ()) else None
    labels = {key: label_value(str(value)) for key, value in ours.items() if value}
    stated, taints = variables.get("node_labels") or {}, variables.get("node_taints") or []
    if not isinstance(stated, Mapping) or not isinstance(taints, list | tuple):
        what = f"{host}: node_labels is not a mapping, or node_taints is not a list"
        raise ValueError(f"{what}. Fix: write `key: value` in node_labels and `- key=value:effect` in node_taints")  # noqa: TRY004 (as the others)
    faults = [f"node_labels: {what}. Fix: {fix}" for what, fix in filter(None, (label_fault(key, stated[key]) for key in stated))]
    faults += [f"node_taints: {what}. Fix: {fix}" for what, fix in filter(None, map(taint_fault, taints))]
    if faults:
        raise ValueError(f"{host}: {'; '.join(faults)}")
    labels |= {str(key): str(value) for key, value in stated.items()}
    return DesiredNode(tuple(sorted(labels.items())), tuple(sorted(map(split_taint, taints))))


def difference(node: Node, desired: DesiredNode) -> NodeChange:
    """Return the changes that a Node needs."""
    labels, found, owned = dict(desired.labels), _labels(node), owned_labels(node)
    stale = tuple(sorted(key for key in owned - labels.keys() if key in found and _is_ours_alone(node, key)))
    lacking = any(found.get(key) != value or key not in owned for key, value in labels.items())
    return NodeChange(lacking or bool(owned - labels.keys()), stale, taints_patch(node, desired) is not None)


def apply_object(name: str, desired: DesiredNode) -> dict[str, Any]:
    """Return the object for a server-side apply, which sets the Node's labels and removes the project's other labels."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(desired.labels)}}


def taints_patch(node: Node, desired: DesiredNode) -> dict[str, Any] | None:
    """Return the merge patch that sets the Node's taints and keeps those of others, or None if nothing changes."""
    before = {(taint["key"], taint["effect"]) for taint in our_taints(node)}
    taints = [{"key": key, **({"value": value} if value else {}), "effect": effect} for key, value, effect in desired.taints]
    claimed = before | {(taint["key"], taint["effect"]) for taint in taints}
    found = taints_of(node)
    others = [taint for taint in found if (taint["key"], taint["effect"]) not in claimed]
    ours = [taint for taint in found if (taint["key"], taint["effect"]) in claimed]
    note = json.dumps(taints, sort_keys=True) if taints else None
    same = sorted(map(_plain, ours)) == sorted(map(_plain, taints))
    if same and annotations_of(node).get(TAINTS) == note:
        return None
    spec = {} if same else {"spec": {"taints": [*others, *taints] or None}}
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": {TAINTS: note}}, **spec}


def our_taints(node: Node) -> list[dict[str, Any]]:
    """Return the project's taints of a Node from its annotation; none if the annotation is damaged."""
    try:
        return [{"key": str(taint["key"]), "effect": str(taint["effect"])} for taint in json.loads(annotations_of(node).get(TAINTS, "[]"))]
    except (ValueError, KeyError, TypeError):
        return []


def owned_labels(node: Node) -> set[str]:
    """Return the labels that server-side apply records as the project's."""
    return set().union(*(_fields(entry) for entry in _entries(node) if _is_our_apply(entry)))


def missing_after(node: Node, desired: DesiredNode) -> list[str]:
    """Return the labels and taints that a Node lacks after the change."""
    found = _labels(node)
    lost = [f"label {key}={value}" for key, value in desired.labels if found.get(key) != value]
    present = {(taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints_of(node)}
    return lost + [f"taint {key}={value}:{effect}" for key, value, effect in desired.taints if (key, value, effect) not in present]


def shown(node: Node, keys: Iterable[str]) -> dict[str, Any]:
    """Return these labels and the taints of a Node, for a difference."""
    found = _labels(node)
    labels = {key: found[key] for key in sorted(keys) if key in found}
    return {"labels": labels, "taints": sorted(_plain(taint) for taint in taints_of(node))}


def shown_after(node: Node, desired: DesiredNode, keys: Iterable[str]) -> dict[str, Any]:
    """Return these labels and the taints of a Node after the change, for a difference."""
    patch = taints_patch(node, desired) or {}
    taints = (patch.get("spec") or {"taints": taints_of(node)})["taints"] or []
    removed = set(difference(node, desired).removed)
    labels = {key: value for key, value in (_labels(node) | dict(desired.labels)).items() if key in set(keys) and key not in removed}
    return {"name": name_of(node), "labels": dict(sorted(labels.items())), "taints": sorted(_plain(taint) for taint in taints)}


def _plain(taint: Mapping[str, Any]) -> str:
    return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"


def _labels(node: Node) -> dict[str, str]:
    return dict(node["metadata"].get("labels") or {})


def _entries(node: Node) -> list[dict[str, Any]]:
    return list(node["metadata"].get("managedFields") or [])


def _is_our_apply(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"


def _fields(entry: Mapping[str, Any]) -> set[str]:
    labels = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
    return {key.removeprefix("f:") for key in labels if key.startswith("f:")}


def _is_ours_alone(node: Node, key: str) -> bool:
    """Return whether only this project, or Kubespray from the same inventory, set a label."""
    owners = [entry for entry in _entries(node) if key in _fields(entry) and not _is_our_apply(entry)]
    return all(str(entry.get("manager", "")).startswith((_KUBECTL, FIELD_MANAGER)) for entry in owners)
