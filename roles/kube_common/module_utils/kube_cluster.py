"""Objects of one API server: applied server-side, read back, waited for, removed."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.kube_client import MANAGER, api_client, dynamic_client, reason_of, resource_of
from ansible.module_utils.kube_fields import difference, holds, lost_fields, title, without_server_fields, written
from ansible.module_utils.kube_mark import marked
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_S = 1.0
# How often a DaemonSet that is short of pods is asked where they are, and for how many at most: more are a rollout under way.
WHERE_S, WHERE_MOST = 10.0, 100
# Comes a moment after what it belongs to: a webhook whose pod has just started, a definition that is not served yet, an edit in between.
PASSING = (
    "failed calling webhook",
    "no endpoints available",
    "connection refused",
    "the object has been modified",
    "could not find the requested resource",
)
PASSING_S = 60.0
# A namespace takes its pods along, and they their grace period.
GOING_S = 180.0


class RefusedError(Exception):
    """An object could not be had; the message says which and why."""


class Cluster:
    """What is asked of one API server."""

    def __init__(self, kubeconfig: str, *, look_only: bool) -> None:
        """Reach the server."""
        self.kinds = dynamic_client(api_client(kubeconfig))
        self.look_only, self.manager = look_only, MANAGER

    def live(self, obj: dict[str, Any]) -> dict[str, Any] | None:
        """Return an object as it is, None where it, or its kind, is not there."""
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
        """Apply an object; None where that cannot be asked yet in check mode."""
        give_up = time.monotonic() + PASSING_S
        while True:
            kind = resource_of(self.kinds, obj["apiVersion"], obj["kind"])
            if kind is None and self.look_only:
                return None
            if kind is None:
                raise RefusedError(
                    f"{title(obj)}: the API server knows no kind {obj['kind']} in {obj['apiVersion']}. Fix: apply what brings it first; "
                    "a built-in kind needs a newer Kubernetes"
                )
            query = [("fieldManager", self.manager), ("force", "true"), *([("dryRun", "All")] if self.look_only else [])]
            try:
                return self._patch(kind, obj, query)
            except (ApiException, DynamicApiError) as error:
                why = reason_of(error)
                if self.look_only and error.status == 404:
                    return None
                if time.monotonic() > give_up or not any(word in why for word in PASSING):
                    raise RefusedError(f"{title(obj)}: the API server refuses it ({error.status}): {why}") from None
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
        """Delete an object, and those that it owns after it."""
        kind = resource_of(self.kinds, obj["apiVersion"], obj["kind"])
        metadata = obj["metadata"]
        try:
            kind.delete(name=metadata["name"], namespace=metadata.get("namespace"))
        except (ApiException, DynamicApiError) as error:
            if error.status != 404:
                raise RefusedError(f"{title(obj)}: {reason_of(error)}") from None

    def complaints(self, obj: dict[str, Any]) -> str:
        """Return what keeps the pods of a workload from running, as far as the server tells."""
        return "; ".join(sorted({text for pod in self._pods(obj) for text in pod_complaints(pod)}))[:600]

    def away(self, obj: dict[str, Any]) -> int:
        """Return how many pods of a DaemonSet that are not ready are on nodes that are not ready, as far as the server tells."""
        nodes = {str(pod["spec"].get("nodeName") or "") for pod in self._pods(obj) if not is_ready(pod)} - {""}
        if len(nodes) > WHERE_MOST:
            return 0
        return sum(1 for name in nodes if (node := self._node(name)) and not is_ready(node))

    def _node(self, name: str) -> dict[str, Any] | None:
        try:
            return self.live({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        except RefusedError:
            return None

    def _pods(self, obj: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the pods of a workload, none where the server does not tell."""
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
    """Tell whether a pod or a node says that it is ready."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in (obj.get("status") or {}).get("conditions") or ())


def pod_complaints(pod: dict[str, Any]) -> Iterator[str]:
    """Yield why a pod does not run: what its containers wait for, how they ended, and where it finds no node."""
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
            yield f"not placed: {one.get('message') or one.get('reason')}"


def have(cluster: Cluster, objects: list[dict[str, Any]], *, keep: bool = False, mark: str = "") -> dict[str, Any]:
    """Apply all; return what changed, what was dropped, and what another wrote over it.

    Args:
        cluster: Where.
        objects: What is asked for.
        keep: Whether one that is there stays as it is.
        mark: The cluster whose hosts.yaml asks for them, which may take away again what it brought; empty = nobody's.
    """
    changed, diffs, dropped, altered = [], [], [], []
    for given in objects:
        obj = written(given)
        before = standing(cluster, obj)
        if keep and before:
            continue
        obj = marked(obj, before, mark, kept=keep)
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


def standing(cluster: Cluster, obj: dict[str, Any]) -> dict[str, Any] | None:
    """Return an object as it is, None where it is not there; one that is on its way out is waited for: what is applied to it goes too.

    Raises:
        RefusedError: it does not go.
    """
    give_up = time.monotonic() + GOING_S
    while (found := cluster.live(obj)) and (found.get("metadata") or {}).get("deletionTimestamp") and not cluster.look_only:
        if time.monotonic() > give_up:
            raise RefusedError(
                f"{title(obj)}: somebody has deleted it, and after {GOING_S:.0f} s it is still there. "
                f"Fix: see its finalizers and conditions: kubectl get {obj['kind'].lower()} {obj['metadata']['name']} -o yaml"
            )
        time.sleep(POLL_S)
    return found


def remove(cluster: Cluster, objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Delete those that are there; in the opposite order."""
    present = [(obj, before) for obj in reversed(objects) if (before := cluster.live(obj)) is not None]
    for obj, _ in present:
        if not cluster.look_only:
            cluster.delete(obj)
    return {
        "applied": [title(obj) for obj, _ in present],
        "diffs": [difference(before, None) for _, before in present],
        "dropped": [],
        "altered": [],
    }


def wait_for(cluster: Cluster, wants: list[dict[str, Any]], timeout_s: float) -> list[str]:
    """Wait until every object is as it should be, one `name` each or several `names`; return what is missing at the end."""
    end = time.monotonic() + timeout_s
    left = [{**want, "name": name} for want in wants for name in want.get("names") or [want.get("name")] if name]
    where = time.monotonic() + WHERE_S
    while True:
        asks = time.monotonic() >= min(where, end)
        where = time.monotonic() + WHERE_S if asks else where
        missing = []
        for want in left:
            obj = cluster.live({"apiVersion": want["api_version"], "kind": want["kind"], "metadata": _metadata(want)})
            fits, how = holds(obj, want)
            if not fits and asks and obj and obj["kind"] == "DaemonSet":
                # A node that is down must not keep a chart from all the others.
                fits, how = holds(obj, want, cluster.away(obj))
            if not fits:
                missing.append((want, obj, how))
        if not missing:
            return []
        if time.monotonic() >= end:
            return [_missing(cluster, *one) for one in missing]
        left = [want for want, _, _ in missing]
        time.sleep(POLL_S)


def _metadata(want: dict[str, Any]) -> dict[str, Any]:
    return {"name": want["name"], **({"namespace": want["namespace"]} if want.get("namespace") else {})}


def _missing(cluster: Cluster, want: dict[str, Any], obj: dict[str, Any] | None, how: str) -> str:
    pods = cluster.complaints(obj) if obj else ""
    return f"{title({'kind': want['kind'], 'metadata': _metadata(want)})}: {how}" + (f" ({pods})" if pods else "")
