"""Drain a Node: wait for its jobs, evict the other pods within their disruption budgets, and report pods that remain.

Pods of DaemonSets and static pods stay. Only `force` evicts pods without a controller, and pods of jobs that have not ended in time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.api import ApiError
from primus_bootstrap.kubernetes.node_marks import is_cordoned, mark_patch, marks_of
from primus_bootstrap.kubernetes.nodes import BUSY, MISSING, change_node, read_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from primus_bootstrap.kubernetes.api import Api

    Pod = Mapping[str, Any]

POLL_S = 2.0
_MIRROR = "kubernetes.io/config.mirror"
# Kinds whose pods end by themselves.
_JOBS = ("Job", "PyTorchJob", "MPIJob")
_EVICTED = "it was evicted and has not ended"
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Contents:
    """The pods to evict from a Node, as namespace/name. Nothing restarts `lone` pods elsewhere: they have no controller."""

    jobs: tuple[str, ...]
    movable: tuple[str, ...]
    lone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How to drain: the time limits for jobs and for evictions in seconds, and whether to evict jobs and lone pods."""

    wait_s: float
    evict_s: float
    force: bool


def sort_pods(pods: Iterable[Pod]) -> Contents:
    """Classify the pods of a Node, except those that stay (of DaemonSets, and static pods) or have ended."""
    jobs: list[str] = []
    movable: list[str] = []
    lone: list[str] = []
    for pod in pods:
        metadata, owner = pod["metadata"], _owner(pod)
        name = f"{metadata['namespace']}/{metadata['name']}"
        stays = _MIRROR in (metadata.get("annotations") or {}) or owner == "DaemonSet"
        if stays or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        if owner in _JOBS:
            jobs.append(name)
        else:
            (movable if owner else lone).append(name)
    return Contents(tuple(sorted(jobs)), tuple(sorted(movable)), tuple(sorted(lone)))


def drain_problem(contents: Contents, options: DrainOptions, *, held: Mapping[str, str], node: str) -> str:
    """Return why a Node is not empty, in one line, or an empty string. `held` maps each remaining pod to its reason."""
    parts = []
    if contents.lone and not options.force:
        parts.append(f"pods without a controller, which nothing would restart: {_names(contents.lone)}")
    if contents.jobs and not options.force:
        parts.append(f"jobs that did not end within {options.wait_s:g} s: {_names(contents.jobs)}")
    remaining = [f"{name} ({why})" for name, why in sorted(held.items())]
    if remaining:
        parts.append(f"pods that were not gone after {options.evict_s:g} s: {_names(remaining)}")
    return f"{node} is not empty: {'; '.join(parts)}" if parts else ""


class Drain:
    """The drain of one Node."""

    def __init__(
        self,
        api: Api,
        node: str,
        options: DrainOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Store the API, the Node and the options; tests replace the clock."""
        self._api = api
        self._node = node
        self._options = options
        self._clock = clock
        self._wait = wait

    def run(self, record: Mapping[str, Any], *, dry_run: bool = False) -> bool:
        """Cordon and drain the Node; return whether anything changed. A Node that does not exist is empty.

        Raises:
            RunError: Pods remain; the Node stays cordoned.
        """
        found = read_node(self._api, self._node)
        if not found:
            return False
        contents = self._contents()
        # The health mark may be removed while this waits for jobs; these two marks stay until a person removes them.
        cordons = marks_of(found).keys().isdisjoint(("drain", "quarantine")) or not is_cordoned(found)
        if dry_run:
            return cordons or bool(contents.jobs or contents.movable or contents.lone)
        if cordons:
            found = change_node(self._api, found, lambda node: mark_patch(node, "drain", record))
        if is_not_ready(found) and self._options.force:
            return cordons  # no pod can end there; they are deleted with the Node
        self._check(Contents((), (), contents.lone))
        self._wait_for_jobs()
        contents = self._contents()
        self._check(contents)
        pods = (*contents.movable, *contents.jobs, *contents.lone)
        held = self._evict(pods, alive=not is_not_ready(found))
        self._check(Contents((), (), ()), held)
        return cordons or bool(pods)

    def _pods(self) -> Iterable[Pod]:
        return self._api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node}")

    def _contents(self) -> Contents:
        return sort_pods(self._pods())

    def _check(self, contents: Contents, held: Mapping[str, str] | None = None) -> None:
        if problem := drain_problem(contents, self._options, held=held or {}, node=self._node):
            fix = "wait for these pods or delete them, and run this again; with force, jobs and pods without a controller are evicted"
            raise RunError(problem, fix=fix)

    def _wait_for_jobs(self) -> None:
        deadline = self._clock() + self._options.wait_s
        while self._contents().jobs and self._clock() < deadline:
            self._wait(POLL_S)

    def _evict(self, pods: Sequence[str], *, alive: bool) -> dict[str, str]:
        """Evict pods until they are gone; return the reason of each that remains. On a dead Node, an evicted pod counts as gone."""
        deadline = self._clock() + self._options.evict_s
        held = dict.fromkeys(pods, "it was not evicted yet")
        evicted: set[str] = set()
        version = _eviction_version(self._api) if pods else ""
        while held:
            for name in sorted(held.keys() - evicted):
                held[name] = self._evict_one(name, version)
                evicted |= {name} if held[name] == _EVICTED else set()
            present = {_full_name(pod) for pod in self._pods()} if alive else held.keys() - evicted
            held = {name: why for name, why in held.items() if name in present}
            if not held or self._clock() >= deadline:
                break
            self._wait(POLL_S)
        return held

    def _evict_one(self, name: str, version: str) -> str:
        namespace, _, pod = name.partition("/")
        body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        try:
            self._api.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)
        except ApiError as error:
            if error.status == BUSY:
                return _budget(error)
            if error.status != MISSING:
                return error.what
        return _EVICTED


def delete_node(api: Api, node: str, *, dry_run: bool = False) -> bool:
    """Delete a Node and with it its pods; return whether it existed."""
    if not read_node(api, node):
        return False
    if not dry_run:
        api.delete(f"/api/v1/nodes/{node}")
    return True


def _eviction_version(api: Api) -> str:
    """Return the server's API version for evictions: policy/v1, or v1beta1 before Kubernetes 1.22."""
    resources = api.get("/api/v1")["resources"]
    eviction: dict[str, Any] = next((resource for resource in resources if resource["name"] == "pods/eviction"), {})
    return f"{eviction.get('group', 'policy')}/{eviction.get('version', 'v1')}"


def _budget(error: ApiError) -> str:
    causes = (error.body.get("details") or {}).get("causes") or ()
    messages = "; ".join(str(cause.get("message")) for cause in causes if cause.get("message"))
    return f"a disruption budget forbids the eviction: {messages or error.body.get('message', '')}".rstrip(": ")


def _owner(pod: Pod) -> str:
    """Return the kind of a pod's controller, or an empty string."""
    return next((str(owner["kind"]) for owner in pod["metadata"].get("ownerReferences") or () if owner.get("controller")), "")


def _full_name(pod: Pod) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def is_not_ready(node: Mapping[str, Any]) -> bool:
    """Return whether a Node's condition Ready is not True."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] != "True" for condition in conditions)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
