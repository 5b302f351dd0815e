"""Read, set and lift quarantines of Nodes. A quarantine of another owner is never changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from primus_bootstrap.kubernetes.node_marks import MARKS, mark_of, mark_patch, unmark_patch
from primus_bootstrap.kubernetes.nodes import change_node, for_each, read_node, read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.kubernetes.api import Api

    Node = Mapping[str, Any]
    Patch = Mapping[str, Any]

QUARANTINE = "quarantine"
_READ_EACH = 1  # so many Nodes are read one by one, more with a list


def read_record(api: Api, name: str) -> dict[str, Any]:
    """Return the quarantine record of a Node in the format of the role `quarantine`: record, problem, time on this machine.

    `now` is missing if the cluster has no such Node.
    """
    node = read_node(api, name)
    if not node:
        return {"record": {}, "problem": ""}
    record = mark_of(node, QUARANTINE)
    if record.get("unreadable"):
        return {"record": {}, "problem": f"the annotation of Node {name}: {record['reason']}", "now": time.time()}
    return {"record": record, "problem": "", "now": time.time()}


def set_quarantines(api: Api, records: Mapping[str, Mapping[str, Any]], *, dry_run: bool = False) -> list[str]:
    """Set quarantine records; return the changed Nodes. Records of other owners stay, and missing Nodes are skipped."""

    def patch(node: Node) -> Patch | None:
        record = records[node["metadata"]["name"]]
        existing = mark_of(node, QUARANTINE)
        return mark_patch(node, QUARANTINE, record) if existing.get("owner") in (None, record["owner"]) else None

    return _change(api, list(records), patch, dry_run=dry_run)


def lift_quarantines(api: Api, names: Sequence[str], *, owner: str = "", dry_run: bool = False) -> list[str]:
    """Lift the quarantines of one owner, or of all owners; return the changed Nodes."""

    def patch(node: Node) -> Patch | None:
        return unmark_patch(node, QUARANTINE) if owner in ("", mark_of(node, QUARANTINE).get("owner")) else None

    return _change(api, list(names), patch, dry_run=dry_run)


def lift_mark(api: Api, names: Sequence[str], *, mark: str, reason: str, dry_run: bool = False) -> list[str]:
    """Remove a mark that was set for this reason; return the changed Nodes."""

    def patch(node: Node) -> Patch | None:
        return unmark_patch(node, mark) if mark_of(node, mark).get("reason") == reason else None

    return _change(api, list(names), patch, dry_run=dry_run)


def lift_all(api: Api, names: Sequence[str], *, dry_run: bool = False) -> list[str]:
    """Remove all marks and the project's cordon; return the Nodes that had a mark."""
    changed: set[str] = set()
    for mark in MARKS:
        changed |= set(_change(api, list(names), lambda node, mark=mark: unmark_patch(node, mark), dry_run=dry_run))  # type: ignore[misc]
    return sorted(changed)


def _change(api: Api, names: Sequence[str], patch: Callable[[Node], Patch | None], *, dry_run: bool) -> list[str]:
    """Patch the Nodes that differ. Several Nodes are read with one list."""
    nodes = {name: read_node(api, name) for name in names} if len(names) <= _READ_EACH else read_nodes(api)
    differing = [name for name in names if nodes.get(name) and patch(nodes[name]) is not None]
    if not dry_run:
        for_each(differing, lambda name: _patched(api, nodes[name], patch))
    return differing


def _patched(api: Api, node: Node, patch: Callable[[Node], Patch | None]) -> None:
    change_node(api, node, patch)
