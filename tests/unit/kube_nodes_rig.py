"""A fake API server with Nodes and pods: merge patches, conflicts, and evictions that a budget may block."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from primus_bootstrap.kubernetes.api import APPLY, FIELD_MANAGER, MERGE, ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def node(name: str = "gpu1", **spec: Any) -> dict[str, Any]:
    """Return a Node that is ready."""
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec, "status": {"conditions": [ready]}}


def pod(name: str, owner: str = "ReplicaSet", *, on: str = "gpu1", phase: str = "Running") -> dict[str, Any]:
    """Return a pod; without an owner it has no controller."""
    owners = [{"kind": owner, "name": owner.lower(), "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "x", "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": {"phase": phase}}


def merged(found: Any, patch: Any) -> Any:
    """Return the result of a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    base = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merged(base.get(key), value)
    return base


class FakeApi:
    """Nodes and pods in memory. `calls` has the changes, `held` the pods that a budget blocks, `stuck` those that never end."""

    def __init__(self, *nodes: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> None:
        """Store copies of the objects."""
        self.nodes = {one["metadata"]["name"]: copy.deepcopy(one) for one in nodes}
        self.pods = list(pods)
        self.calls: list[str] = []
        self.held: set[str] = set()
        self.stuck: set[str] = set()
        self.before_patch: Callable[[], None] = lambda: None

    def get(self, path: str, **_: str) -> dict[str, Any]:
        """Return a Node, or the resources of the API."""
        if path == "/api/v1":
            return {"resources": [{"name": "pods/eviction", "group": "policy", "version": "v1beta1"}]}
        return copy.deepcopy(self._node(path))

    def items(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the Nodes, or the pods of one."""
        if path.endswith("pods"):
            of = query["fieldSelector"].partition("=")[2]
            yield from [one for one in self.pods if one["spec"]["nodeName"] == of]
        else:
            yield from copy.deepcopy(list(self.nodes.values()))

    def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE, dry_run: bool = False) -> dict[str, Any]:
        """Change a Node."""
        self.before_patch()
        found = self._node(path)
        stated = body["metadata"].get("resourceVersion")
        if stated not in (None, found["metadata"]["resourceVersion"]):
            raise ApiError("changed since", fix="", status=409)
        if dry_run:
            return copy.deepcopy(found)
        self.calls.append(f"{'apply' if kind == APPLY else 'patch'} {path.rpartition('/')[2]}")
        if kind == APPLY:
            self._take_over(found, body["metadata"]["labels"])
        else:
            new = merged(found, body)
            found.clear()
            found.update(new)
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)
        return copy.deepcopy(found)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Evict a pod."""
        name = path.split("/")[-2]
        if name in self.held:
            cause = {"message": "The disruption budget web needs 1 healthy pods and has 1 currently"}
            raise ApiError("Cannot evict pod", fix="", status=429, body={"details": {"causes": [cause]}})
        self.calls.append(f"evict {name} {body['apiVersion']}")
        if name not in self.stuck:
            self.pods = [one for one in self.pods if one["metadata"]["name"] != name]
        return {}

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002 - the seam's
        """Delete a Node."""
        self.calls.append(f"delete {path.rpartition('/')[2]}")
        self.nodes.pop(path.rpartition("/")[2])
        return {}

    def _node(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self.nodes:
            raise ApiError("not found", fix="", status=404)
        return self.nodes[name]

    @staticmethod
    def _take_over(found: dict[str, Any], labels: Mapping[str, str]) -> None:
        """Apply labels like the server: those that only this project set and no longer applies are removed."""
        metadata = found["metadata"]
        entries = metadata.setdefault("managedFields", [])
        mine = [one for one in entries if one["manager"] == FIELD_MANAGER]
        before = {key for one in mine for key in one["fieldsV1"]["f:metadata"]["f:labels"]}
        entries[:] = [one for one in entries if one["manager"] != FIELD_MANAGER]
        others = {key for one in entries for key in one["fieldsV1"]["f:metadata"]["f:labels"]}
        gone = {key.removeprefix("f:") for key in before - others} - labels.keys()
        metadata["labels"] = {key: value for key, value in metadata.get("labels", {}).items() if key not in gone} | dict(labels)
        fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}}}
        entries.append({"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields})
