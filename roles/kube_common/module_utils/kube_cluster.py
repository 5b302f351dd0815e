"""Apply, read back, wait for and remove objects of one API server."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.kube_client import MANAGER, api_client, dynamic_client, reason_of, resource_of
from ansible.module_utils.kube_fields import difference, lost_fields, meets, title, without_server_fields, written
from ansible.module_utils.kube_mark import with_cluster_label
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_S = 1.0
# How often the nodes of a DaemonSet's missing pods are read, and of how many nodes at most: more missing pods mean a rollout in progress.
NODE_CHECK_S, NODE_CHECK_MAX = 10.0, 100
# Errors that pass: a webhook whose pod has just started, a definition that is not served yet, a concurrent change.
TRANSIENT_ERRORS = (
    "failed calling webhook",
    "no endpoints available",
    "connection refused",
    "the object has been modified",
    "could not find the requested resource",
)
TRANSIENT_S = 60.0
# Deleting a namespace waits for its pods and their grace period.
DELETION_S = 180.0


class RefusedError(Exception):
    """An object could not be read, applied or deleted; the message has its name and the reason."""


class Cluster:
    """Requests to one API server."""

    def __init__(self, kubeconfig: str, *, dry_run: bool) -> None:
        """Connect to the server. `dry_run` changes nothing."""
        self.kinds = dynamic_client(api_client(kubeconfig))
        self.dry_run, self.manager = dry_run, MANAGER

    def live(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """Return the current state of an object, or None if the object or its kind does not exist."""
        kind = resource_of(self.kinds, obj["apiVersion"], obj["kind"])
        if kind is None:
            return None
        metadata = obj.get("metadata") or {}
        try:
            return kind.get(name=metadata["name"], namespace=metadata.get("namespace")).to_dict()
        except (ApiException, DynamicApiError) as error:
            if error.status == 404:
                return None
            raise RefusedError(f"{title(obj)}: {reason_of(error)}") from None

    def apply(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """Apply an object and return it; None if a dry run cannot tell because the kind or namespace does not exist yet."""
        deadline = time.monotonic() + TRANSIENT_S
        while True:
            kind = resource_of(self.kinds, obj["apiVersion"], obj["kind"])
            if kind is None and self.dry_run:
                return None
            if kind is None:
                raise RefusedError(
                    f"{title(obj)}: the API server has no kind {obj['kind']} in {obj['apiVersion']}. Fix: apply the chart that installs "
                    "its definition first; a built-in kind needs a newer Kubernetes"
                )
            query = [("fieldManager", self.manager), ("force", "true"), *([("dryRun", "All")] if self.dry_run else [])]
            try:
                return self._patch(kind, obj, query)
            except (ApiException, DynamicApiError) as error:
                reason = reason_of(error)
                if self.dry_run and error.status == 404:
                    return None
                if time.monotonic() > deadline or not any(text in reason for text in TRANSIENT_ERRORS):
                    raise RefusedError(f"{title(obj)}: the API server refuses it ({error.status}): {reason}") from None
            time.sleep(POLL_S)

    def _patch(self, kind: Any, obj: dict[str, Any], query: list[tuple[str, str]]) -> dict[str, Any]:
        metadata = obj["metadata"]
        path = kind.path(name=metadata["name"], namespace=metadata.get("namespace"))
        answer = self.kinds.client.call_api(
            path, "PATCH", query_params=query, body=obj, auth_settings=["BearerToken"], _preload_content=False, _return_http_data_only=True,
            header_params={"Content-Type": "application/apply-patch+yaml", "Accept": "application/json"},
        )  # fmt: skip
        return dict(json.loads(answer.data))

    def delete(self, obj: dict[str, Any]) -> None:
        """Delete an object; the server then deletes those that it owns."""
        kind = resource_of(self.kinds, obj["apiVersion"], obj["kind"])
        metadata = obj["metadata"]
        try:
            kind.delete(name=metadata["name"], namespace=metadata.get("namespace"))
        except (ApiException, DynamicApiError) as error:
            if error.status != 404:
                raise RefusedError(f"{title(obj)}: {reason_of(error)}") from None

    def pod_problems(self, obj: dict[str, Any]) -> str:
        """Return why the pods of a workload do not run, as far as the server reports it."""
        return "; ".join(sorted({text for pod in self._pods(obj) for text in pod_problems(pod)}))[:600]

    def pods_on_unready_nodes(self, obj: dict[str, Any]) -> int:
        """Return how many pods of a DaemonSet are not ready because their nodes are not; 0 if that cannot be read."""
        nodes = {str(pod["spec"].get("nodeName") or "") for pod in self._pods(obj) if not is_ready(pod)} - {""}
        if len(nodes) > NODE_CHECK_MAX:
            return 0
        return sum(1 for name in nodes if (node := self._node(name)) and not is_ready(node))

    def _node(self, name: str) -> dict[str, Any] | None:
        try:
            return self.live({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        except RefusedError:
            return None

    def _pods(self, obj: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the pods of a workload; an empty list if they cannot be read."""
        labels = ((obj.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        if not labels:
            return []
        pods = resource_of(self.kinds, "v1", "Pod")
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        try:
            return list(pods.get(namespace=obj["metadata"].get("namespace"), label_selector=selector).to_dict()["items"])
        except (ApiException, DynamicApiError):
            return []


def is_ready(obj: dict[str, Any]) -> bool:
    """Return whether a pod or node has the condition Ready."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in (obj.get("status") or {}).get("conditions") or ())


def pod_problems(pod: dict[str, Any]) -> Iterator[str]:
    """Yield why a pod does not run: what its containers wait for, how they ended, and why it has no node."""
    status = pod.get("status") or {}
    for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        state = one.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            yield f"{one['name']}: {waiting['reason']} {waiting.get('message') or ''}".strip()
        ended = state.get("terminated") or {}
        if ended.get("exitCode"):
            yield f"{one['name']}: ended with {ended['exitCode']} {ended.get('reason') or ''}".strip()
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            yield f"not scheduled: {one.get('message') or one.get('reason')}"


def apply_objects(cluster: Cluster, objects: list[dict[str, Any]], *, create_only: bool = False, owner: str = "") -> dict[str, Any]:
    """Apply all objects; return which changed, which fields the server dropped, and which fields something else changed.

    Args:
        cluster: The API server.
        objects: The objects to apply.
        create_only: Whether an object that exists is left as it is.
        owner: The name of the cluster whose hosts.yaml creates the objects, for a label by which a reset finds them. Empty = no label.
    """
    changed, diffs, dropped, altered = [], [], [], []
    for given in objects:
        obj = written(given)
        before = settled(cluster, obj)
        if create_only and before:
            continue
        obj = with_cluster_label(obj, before, owner, keep=create_only)
        after = cluster.apply(obj)
        if after is not None:
            losses = list(lost_fields(obj, after))
            # A Secret's value is never shown.
            shown = "" if obj["kind"] == "Secret" else "{0.asked!r}"
            dropped += [f"{title(obj)}: {one.path} {shown.format(one)}".strip() for one in losses if one.dropped]
            altered += [f"{title(obj)}: {one.path}" for one in losses if not one.dropped]
        if text := difference(before, after or obj):
            changed.append(title(obj))
            diffs.append(text)
        elif without_server_fields(before) != without_server_fields(after or obj):
            changed.append(title(obj))
    return {"applied": changed, "diffs": diffs, "dropped": dropped, "altered": altered}


def settled(cluster: Cluster, obj: dict[str, Any]) -> dict[str, Any] | None:
    """Return an object, or None if it does not exist. Wait while it is being deleted, because changes to it would be lost.

    Raises:
        RefusedError: It is not deleted within the time.
    """
    deadline = time.monotonic() + DELETION_S
    while (found := cluster.live(obj)) and (found.get("metadata") or {}).get("deletionTimestamp") and not cluster.dry_run:
        if time.monotonic() > deadline:
            raise RefusedError(
                f"{title(obj)}: it is being deleted, and still exists after {DELETION_S:.0f} s. "
                f"Fix: check its finalizers and conditions: kubectl get {obj['kind'].lower()} {obj['metadata']['name']} -o yaml"
            )
        time.sleep(POLL_S)
    return found


def remove_objects(cluster: Cluster, objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Delete the objects that exist, in reverse order."""
    present = [(obj, before) for obj in reversed(objects) if (before := cluster.live(obj)) is not None]
    for obj, _ in present:
        if not cluster.dry_run:
            cluster.delete(obj)
    return {
        "applied": [title(obj) for obj, _ in present],
        "diffs": [difference(before, None) for _, before in present],
        "dropped": [],
        "altered": [],
    }


def wait_for(cluster: Cluster, wants: list[dict[str, Any]], timeout_s: float) -> list[str]:
    """Wait until every object (one `name`, or several `names`) meets its condition; return what is missing after the timeout."""
    end = time.monotonic() + timeout_s
    left = [{**want, "name": name} for want in wants for name in want.get("names") or [want.get("name")] if name]
    next_node_check = time.monotonic() + NODE_CHECK_S
    while True:
        checks_nodes = time.monotonic() >= min(next_node_check, end)
        next_node_check = time.monotonic() + NODE_CHECK_S if checks_nodes else next_node_check
        missing = []
        for want in left:
            obj = cluster.live({"apiVersion": want["api_version"], "kind": want["kind"], "metadata": _metadata(want)})
            met, state = meets(obj, want)
            if not met and checks_nodes and obj and obj["kind"] == "DaemonSet":
                # A node that is down must not block a chart on all the others.
                met, state = meets(obj, want, cluster.pods_on_unready_nodes(obj))
            if not met:
                missing.append((want, obj, state))
        if not missing:
            return []
        if time.monotonic() >= end:
            return [_missing(cluster, *one) for one in missing]
        left = [want for want, _, _ in missing]
        time.sleep(POLL_S)


def _metadata(want: dict[str, Any]) -> dict[str, Any]:
    return {"name": want["name"], **({"namespace": want["namespace"]} if want.get("namespace") else {})}


def _missing(cluster: Cluster, want: dict[str, Any], obj: dict[str, Any] | None, state: str) -> str:
    pods = cluster.pod_problems(obj) if obj else ""
    return f"{title({'kind': want['kind'], 'metadata': _metadata(want)})}: {state}" + (f" ({pods})" if pods else "")
