"""Quarantines on Nodes: look at a record there, keep records, and lift those of one owner. Nothing of another owner's is touched."""

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
_ONE = 1


def look(api: Api, name: str) -> dict[str, Any]:
    """Return what the Node says of a quarantine, as the role `quarantine` reads it of a host: record, problem, time here.

    `now` is missing where the cluster has no such Node, which could keep no record.
    """
    node = read_node(api, name)
    if not node:
        return {"record": {}, "problem": ""}
    record = mark_of(node, QUARANTINE)
    if record.get("unreadable"):
        return {"record": {}, "problem": f"the annotation of Node {name}: {record['reason']}", "now": time.time()}
    return {"record": record, "problem": "", "now": time.time()}


def keep(api: Api, records: Mapping[str, Mapping[str, Any]], *, dry_run: bool = False) -> list[str]:
    """Mark Nodes with their records; return those that were changed. Another owner's record stands, and a missing Node is passed over."""

    def patch(node: Node) -> Patch | None:
        record = records[node["metadata"]["name"]]
        standing = mark_of(node, QUARANTINE)
        return mark_patch(node, QUARANTINE, record) if standing.get("owner") in (None, record["owner"]) else None

    return _change(api, list(records), patch, dry_run=dry_run)


def release(api: Api, names: Sequence[str], *, owner: str = "", dry_run: bool = False) -> list[str]:
    """Lift quarantines of one owner, of anybody where none is given; return the Nodes that were changed."""

    def patch(node: Node) -> Patch | None:
        standing = mark_of(node, QUARANTINE)
        return unmark_patch(node, QUARANTINE) if owner in ("", standing.get("owner")) else None

    return _change(api, list(names), patch, dry_run=dry_run)


def lift(api: Api, names: Sequence[str], *, mark: str, reason: str, dry_run: bool = False) -> list[str]:
    """Take one mark off where it was set for this reason; return the Nodes that were changed."""

    def patch(node: Node) -> Patch | None:
        return unmark_patch(node, mark) if mark_of(node, mark).get("reason") == reason else None

    return _change(api, list(names), patch, dry_run=dry_run)


def clear(api: Api, names: Sequence[str], *, dry_run: bool = False) -> list[str]:
    """Take every mark of ours off, with our cordon; return the Nodes that had one."""
    changed: set[str] = set()
    for mark in MARKS:
        changed |= set(_change(api, list(names), lambda node, mark=mark: unmark_patch(node, mark), dry_run=dry_run))  # type: ignore[misc]
    return sorted(changed)


def _change(api: Api, names: Sequence[str], patch: Callable[[Node], Patch | None], *, dry_run: bool) -> list[str]:
    """Patch those Nodes that differ: by one list where there are several."""
    nodes = {name: read_node(api, name) for name in names} if len(names) <= _ONE else read_nodes(api)
    differing = [name for name in names if nodes.get(name) and patch(nodes[name]) is not None]
    if not dry_run:
        for_each(differing, lambda name: _patched(api, nodes[name], patch))
    return differing


def _patched(api: Api, node: Node, patch: Callable[[Node], Patch | None]) -> None:
    change_node(api, node, patch)
