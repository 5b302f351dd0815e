"""What this project writes on a Node to keep pods away from it: marks with an owner and a reason, a taint each, and the cordon.

Pure functions from a Node (as the API returns it) to the merge patch that changes it; None where nothing is to be changed. The role
`kube_health` takes this file to control planes: the standard library of Python 3.9 only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Node = Mapping[str, Any]
    Patch = dict[str, Any]

DOMAIN = "primus-bootstrap.io"
# quarantine: a person's, or the bench's; health: of the health checks; drain: of a day-2 verb that empties the node for a while.
MARKS = ("quarantine", "health", "drain")
# Stands where the cordon is ours. A cordon without it is somebody else's, and is never lifted.
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
    """Tell whether the scheduler leaves the Node out."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def has_foreign_cordon(node: Node) -> bool:
    """Tell whether somebody else cordoned the Node."""
    return is_cordoned(node) and CORDON not in annotations_of(node)


def mark_key(mark: str) -> str:
    """Return the key of a mark's annotation and of its taint."""
    return f"{DOMAIN}/{mark}"


def mark_of(node: Node, mark: str) -> dict[str, Any]:
    """Return a mark's record, an empty one where the Node has none; one that cannot be read is nobody's."""
    text = annotations_of(node).get(mark_key(mark))
    if text is None:
        return {}
    try:
        record = dict(json.loads(text))
        return {**record, "owner": str(record["owner"]), "reason": str(record["reason"]), "time": float(record["time"])}
    except (ValueError, KeyError, TypeError) as error:
        return {"owner": "unknown", "reason": f"its record cannot be read: {error!r}", "time": 0.0, "unreadable": True}


def marks_of(node: Node) -> dict[str, dict[str, Any]]:
    """Return the records of all marks that the Node has."""
    return {mark: record for mark in MARKS if (record := mark_of(node, mark))}


def mark_patch(node: Node, mark: str, record: Mapping[str, Any]) -> Patch | None:
    """Return what gives a Node this mark: the record, a taint, and a cordon of ours where nobody has cordoned it."""
    key = mark_key(mark)
    written = json.dumps(record, sort_keys=True)
    known = annotations_of(node)
    annotations = {} if known.get(key) == written else {key: written}
    spec: dict[str, Any] = {}
    if not is_cordoned(node):
        spec["unschedulable"] = True
        annotations |= {} if CORDON in known else {CORDON: "true"}
    if not any(taint["key"] == key for taint in taints_of(node)):
        spec["taints"] = [*taints_of(node), {"key": key, "effect": "NoSchedule"}]
    return _patch(node, annotations, spec)


def unmark_patch(node: Node, mark: str) -> Patch | None:
    """Return what takes a mark off: its record and taint, and the cordon where it is ours and no other mark of ours needs it."""
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
    """Return a merge patch that the server refuses (409) where the Node was changed since it was read."""
    if not annotations and not spec:
        return None
    metadata: dict[str, Any] = {"resourceVersion": node["metadata"]["resourceVersion"]}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"metadata": metadata, **({"spec": dict(spec)} if spec else {})}
