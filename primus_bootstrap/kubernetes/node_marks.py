"""Compute the patches that set and remove this project's marks on a Node: an annotation with owner and reason, a taint, the cordon.

A function returns the merge patch for a Node, or None if nothing changes. The role `kube_health` copies this file to control planes:
Python 3.9, standard library only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Node = Mapping[str, Any]
    Patch = dict[str, Any]

DOMAIN = "primus-bootstrap.io"
# quarantine: set by a person or a benchmark; health: set by the health checks; drain: set by a day-2 verb for its duration.
MARKS = ("quarantine", "health", "drain")
# The annotation of a Node that this project cordoned. Any other cordon is never removed.
CORDON = f"{DOMAIN}/cordon"


def name_of(node: Node) -> str:
    """Return a Node's name."""
    return str(node["metadata"]["name"])


def annotations_of(node: Node) -> dict[str, str]:
    """Return a Node's annotations."""
    return dict(node["metadata"].get("annotations") or {})


def taints_of(node: Node) -> list[dict[str, Any]]:
    """Return a Node's taints."""
    return list((node.get("spec") or {}).get("taints") or [])


def is_cordoned(node: Node) -> bool:
    """Return whether the Node is cordoned."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def has_foreign_cordon(node: Node) -> bool:
    """Return whether the Node is cordoned, but not by this project."""
    return is_cordoned(node) and CORDON not in annotations_of(node)


def mark_key(mark: str) -> str:
    """Return the key of a mark's annotation and taint."""
    return f"{DOMAIN}/{mark}"


def mark_of(node: Node, mark: str) -> dict[str, Any]:
    """Return a mark's record, or an empty one if the Node has no such mark. A damaged record has the owner `unknown`."""
    text = annotations_of(node).get(mark_key(mark))
    if text is None:
        return {}
    try:
        record = dict(json.loads(text))
        return {**record, "owner": str(record["owner"]), "reason": str(record["reason"]), "time": float(record["time"])}
    except (ValueError, KeyError, TypeError) as error:
        return {"owner": "unknown", "reason": f"its record cannot be read: {error!r}", "time": 0.0, "unreadable": True}


def marks_of(node: Node) -> dict[str, dict[str, Any]]:
    """Return the records of all marks of the Node."""
    return {mark: record for mark in MARKS if (record := mark_of(node, mark))}


def mark_patch(node: Node, mark: str, record: Mapping[str, Any]) -> Patch | None:
    """Return the patch that sets a mark: the record, a taint, and a cordon unless the Node is cordoned."""
    key = mark_key(mark)
    text = json.dumps(record, sort_keys=True)
    existing = annotations_of(node)
    annotations = {} if existing.get(key) == text else {key: text}
    spec: dict[str, Any] = {}
    if not is_cordoned(node):
        spec["unschedulable"] = True
        annotations |= {} if CORDON in existing else {CORDON: "true"}
    if not any(taint["key"] == key for taint in taints_of(node)):
        spec["taints"] = [*taints_of(node), {"key": key, "effect": "NoSchedule"}]
    return _patch(node, annotations, spec)


def unmark_patch(node: Node, mark: str) -> Patch | None:
    """Return the patch that removes a mark: its record and taint, and the project's cordon with the last mark."""
    key = mark_key(mark)
    annotations: dict[str, str | None] = {key: None} if key in annotations_of(node) else {}
    spec: dict[str, Any] = {}
    kept = [taint for taint in taints_of(node) if taint["key"] != key]
    if len(kept) < len(taints_of(node)):
        spec["taints"] = kept or None
    if not set(marks_of(node)) - {mark} and CORDON in annotations_of(node):
        annotations[CORDON] = None
        spec |= {"unschedulable": None} if is_cordoned(node) else {}
    return _patch(node, annotations, spec)


def _patch(node: Node, annotations: Mapping[str, str | None], spec: Mapping[str, Any]) -> Patch | None:
    """Return a merge patch that the server rejects (409) if the Node changed since it was read."""
    if not annotations and not spec:
        return None
    metadata: dict[str, Any] = {"resourceVersion": node["metadata"]["resourceVersion"]}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"metadata": metadata, **({"spec": dict(spec)} if spec else {})}
