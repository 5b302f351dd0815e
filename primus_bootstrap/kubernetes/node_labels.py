"""Labels and taints of Nodes from the inventory: what each Node is to have, and what has to be changed for it. Pure functions.

Labels are ours by server-side apply: what others set stays, and what the inventory no longer says goes. A Node's taints are one value to
the server, so an annotation keeps which of them are ours.
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
TAINTS = f"{DOMAIN}/inventory-taints"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_VALUE_CHARS = 63
# kubectl names itself so in managedFields: `kubectl label` of Kubespray's, which takes the same labels from the same inventory.
_KUBECTL = "kubectl"


@dataclass(frozen=True, slots=True)
class DesiredNode:
    """What one Node is to have. `taints` are (key, value, effect)."""

    labels: tuple[tuple[str, str], ...]
    taints: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What one Node lacks or has too much: an object to apply, labels to take off, and a function's worth of taints."""

    apply: bool
    removed: tuple[str, ...]
    taints: bool


def label_value(text: str) -> str:
    """Return a text as a label's value: what does not fit becomes a dash."""
    return _UNFIT.sub("-", text)[:_VALUE_CHARS].strip("-._")


def wish_of(host: str, variables: Mapping[str, Any]) -> DesiredNode:
    """Return what the inventory says of a host: its own labels and taints, and ours from rack, switch and GPU model.

    Raises:
        ValueError: a label or taint that no API server would take; it says which and how it has to be.
    """
    ours = {RACK: variables.get("rack"), SWITCH: variables.get("slurm_switch"), GPU_MODEL: variables.get("gpu_env_model")}
    labels = {key: label_value(str(value)) for key, value in ours.items() if value}
    stated, taints = variables.get("node_labels") or {}, variables.get("node_taints") or []
    if not isinstance(stated, Mapping) or not isinstance(taints, list | tuple):
        what = f"{host}: node_labels is no mapping, or node_taints no list"
        raise ValueError(f"{what}. Fix: key: value below the one, `- key=value:effect` below the other")  # noqa: TRY004 (as the others)
    faults = [f"node_labels: {what}. Fix: {fix}" for what, fix in filter(None, (label_fault(key, stated[key]) for key in stated))]
    faults += [f"node_taints: {what}. Fix: {fix}" for what, fix in filter(None, map(taint_fault, taints))]
    if faults:
        raise ValueError(f"{host}: {'; '.join(faults)}")
    labels |= {str(key): str(value) for key, value in stated.items()}
    return DesiredNode(tuple(sorted(labels.items())), tuple(sorted(map(split_taint, taints))))


def difference(node: Node, wish: DesiredNode) -> NodeChange:
    """Return what has to be changed of a Node."""
    wanted, found, owned = dict(wish.labels), _labels(node), owned_labels(node)
    stale = tuple(sorted(key for key in owned - wanted.keys() if key in found and _is_ours_alone(node, key)))
    lacking = any(found.get(key) != value or key not in owned for key, value in wanted.items())
    return NodeChange(lacking or bool(owned - wanted.keys()), stale, taints_patch(node, wish) is not None)


def apply_object(name: str, wish: DesiredNode) -> dict[str, Any]:
    """Return the object whose server-side apply gives a Node its labels, and takes off those that were ours before."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(wish.labels)}}


def taints_patch(node: Node, wish: DesiredNode) -> dict[str, Any] | None:
    """Return the merge patch that gives a Node its taints beside those of others; None where it has them."""
    before = {(each["key"], each["effect"]) for each in our_taints(node)}
    wanted = [{"key": key, **({"value": value} if value else {}), "effect": effect} for key, value, effect in wish.taints]
    claimed = before | {(taint["key"], taint["effect"]) for taint in wanted}
    found = taints_of(node)
    others = [taint for taint in found if (taint["key"], taint["effect"]) not in claimed]
    ours = [taint for taint in found if (taint["key"], taint["effect"]) in claimed]
    note = json.dumps(wanted, sort_keys=True) if wanted else None
    same = sorted(map(_plain, ours)) == sorted(map(_plain, wanted))
    if same and annotations_of(node).get(TAINTS) == note:
        return None
    spec = {} if same else {"spec": {"taints": [*others, *wanted] or None}}
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": {TAINTS: note}}, **spec}


def our_taints(node: Node) -> list[dict[str, Any]]:
    """Return the taints that we gave a Node, as it was noted; none where the note cannot be read."""
    try:
        return [{"key": str(each["key"]), "effect": str(each["effect"])} for each in json.loads(annotations_of(node).get(TAINTS, "[]"))]
    except (ValueError, KeyError, TypeError):
        return []


def owned_labels(node: Node) -> set[str]:
    """Return the labels that are ours by server-side apply."""
    return set().union(*(_fields(entry) for entry in _entries(node) if _is_our_apply(entry)))


def missing_after(node: Node, wish: DesiredNode) -> list[str]:
    """Return what a Node does not have although it was applied: the server dropped or changed it."""
    found = _labels(node)
    lost = [f"label {key}={value}" for key, value in wish.labels if found.get(key) != value]
    there = {(taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints_of(node)}
    return lost + [f"taint {key}={value}:{effect}" for key, value, effect in wish.taints if (key, value, effect) not in there]


def shown(node: Node, keys: Iterable[str]) -> dict[str, Any]:
    """Return what a difference shows of a Node: these labels, and its taints."""
    found = _labels(node)
    labels = {key: found[key] for key in sorted(keys) if key in found}
    return {"labels": labels, "taints": sorted(_plain(taint) for taint in taints_of(node))}


def shown_after(node: Node, wish: DesiredNode, keys: Iterable[str]) -> dict[str, Any]:
    """Return what a difference shows of a Node that has what it is to have."""
    patch = taints_patch(node, wish) or {}
    taints = (patch.get("spec") or {"taints": taints_of(node)})["taints"] or []
    gone = set(difference(node, wish).removed)
    labels = {key: value for key, value in (_labels(node) | dict(wish.labels)).items() if key in set(keys) and key not in gone}
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
    """Tell whether nobody but us, and Kubespray from the same inventory, has set a label."""
    owners = [entry for entry in _entries(node) if key in _fields(entry) and not _is_our_apply(entry)]
    return all(str(entry.get("manager", "")).startswith((_KUBECTL, FIELD_MANAGER)) for entry in owners)
