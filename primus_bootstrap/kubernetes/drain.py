"""Empty a Node: let its jobs end, evict the rest as disruption budgets allow, and say what is in the way. The judgement is pure.

Pods of DaemonSets and the kubelet's own ones stay. A pod that nobody would start again is only deleted by force, and so are the pods of
jobs that have not ended in time.
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
# Kinds whose pods come to an end by themselves. Those of PyTorchJob and the like are left to their operators.
_JOBS = ("Job", "PyTorchJob", "MPIJob")
_TOLD = "it was told to end and has not"
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Contents:
    """What a Node runs, as namespace/name. Jobs may end by themselves; lone pods are those that nobody would start again."""

    staying: tuple[str, ...]
    jobs: tuple[str, ...]
    movable: tuple[str, ...]
    lone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How to drain: seconds that jobs may take to end, seconds that evictions may take, and whether jobs and lone pods go by force."""

    wait_s: float
    evict_s: float
    force: bool


def sort_pods(pods: Iterable[Pod]) -> Contents:
    """Tell a Node's pods apart; pods that have ended run nothing and are left to their owners."""
    staying: list[str] = []
    jobs: list[str] = []
    movable: list[str] = []
    lone: list[str] = []
    for pod in pods:
        metadata, owner = pod["metadata"], _owner(pod)
        name = f"{metadata['namespace']}/{metadata['name']}"
        if _MIRROR in (metadata.get("annotations") or {}) or owner == "DaemonSet":
            staying.append(name)
        elif (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        elif owner in _JOBS:
            jobs.append(name)
        else:
            (movable if owner else lone).append(name)
    return Contents(tuple(sorted(staying)), tuple(sorted(jobs)), tuple(sorted(movable)), tuple(sorted(lone)))


def in_the_way(contents: Contents, wishes: DrainOptions, *, held: Mapping[str, str], node: str) -> str:
    """Return what keeps a Node from being empty, in one line; `held` says of each pod that is left why it did not go."""
    parts = []
    if contents.lone and not wishes.force:
        parts.append(f"pods that nobody would start again: {_names(contents.lone)}")
    if contents.jobs and not wishes.force:
        parts.append(f"jobs that did not end within {wishes.wait_s:g} s: {_names(contents.jobs)}")
    left = [f"{name} ({why})" for name, why in sorted(held.items())]
    if left:
        parts.append(f"pods that did not go within {wishes.evict_s:g} s: {_names(left)}")
    return f"{node} is not empty: {'; '.join(parts)}" if parts else ""


class Drain:
    """One Node that is emptied."""

    def __init__(
        self,
        api: Api,
        node: str,
        wishes: DrainOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep what to ask, and how to wait."""
        self._api = api
        self._node = node
        self._wishes = wishes
        self._clock = clock
        self._wait = wait

    def run(self, record: Mapping[str, Any], *, dry_run: bool = False) -> bool:
        """Cordon the Node and empty it; tell whether anything was changed. A Node that the cluster does not have is empty.

        Raises:
            RunError: something is in the way; it is named, and the Node stays cordoned.
        """
        found = read_node(self._api, self._node)
        if not found:
            return False
        contents = self._contents()
        # A mark of health may be lifted while jobs are waited for; only these two hold until somebody lifts them.
        cordons = marks_of(found).keys().isdisjoint(("drain", "quarantine")) or not is_cordoned(found)
        if dry_run:
            return cordons or bool(contents.jobs or contents.movable or contents.lone)
        if cordons:
            found = change_node(self._api, found, lambda node: mark_patch(node, "drain", record))
        if is_dead(found) and self._wishes.force:
            return cordons  # nothing can end there; its pods go with the Node's object
        self._refuse(Contents((), (), (), contents.lone))
        self._let_jobs_end()
        contents = self._contents()
        self._refuse(contents)
        going = (*contents.movable, *contents.jobs, *contents.lone)
        held = self._send_away(going, alive=not is_dead(found))
        self._refuse(Contents((), (), (), ()), held)
        return cordons or bool(going)

    def _pods(self) -> Iterable[Pod]:
        return self._api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node}")

    def _contents(self) -> Contents:
        return sort_pods(self._pods())

    def _refuse(self, contents: Contents, held: Mapping[str, str] | None = None) -> None:
        if problem := in_the_way(contents, self._wishes, held=held or {}, node=self._node):
            fix = "wait for them or mend what holds them, then the same again; with force, jobs and lone pods go at once"
            raise RunError(problem, fix=fix)

    def _let_jobs_end(self) -> None:
        deadline = self._clock() + self._wishes.wait_s
        while self._contents().jobs and self._clock() < deadline:
            self._wait(POLL_S)

    def _send_away(self, going: Sequence[str], *, alive: bool) -> dict[str, str]:
        """Evict pods until they are gone; return why each that is left is. Those of a dead Node are gone once they are told to."""
        deadline = self._clock() + self._wishes.evict_s
        held = dict.fromkeys(going, "it was not evicted yet")
        told: set[str] = set()
        version = _eviction_version(self._api) if going else ""
        while held:
            for name in sorted(held.keys() - told):
                held[name] = self._evict_one(name, version)
                told |= {name} if held[name] == _TOLD else set()
            there = {_where(pod) for pod in self._pods()} if alive else held.keys() - told
            held = {name: why for name, why in held.items() if name in there}
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
        return _TOLD


def forget(api: Api, node: str, *, dry_run: bool = False) -> bool:
    """Delete a Node's object, with which its pods go; tell whether there was one."""
    if not read_node(api, node):
        return False
    if not dry_run:
        api.delete(f"/api/v1/nodes/{node}")
    return True


def _eviction_version(api: Api) -> str:
    """Return what the server calls an eviction: policy/v1, or v1beta1 before Kubernetes 1.22."""
    resources = api.get("/api/v1")["resources"]
    found: dict[str, Any] = next((one for one in resources if one["name"] == "pods/eviction"), {})
    return f"{found.get('group', 'policy')}/{found.get('version', 'v1')}"


def _budget(error: ApiError) -> str:
    causes = (error.body.get("details") or {}).get("causes") or ()
    told = "; ".join(str(cause.get("message")) for cause in causes if cause.get("message"))
    return f"a disruption budget holds it: {told or error.body.get('message', '')}".rstrip(": ")


def _owner(pod: Pod) -> str:
    """Return the kind of what controls a pod; empty where nobody does."""
    return next((str(one["kind"]) for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")), "")


def _where(pod: Pod) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def is_dead(node: Mapping[str, Any]) -> bool:
    """Tell whether a Node's kubelet has not been heard of, or is not ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] != "True" for one in conditions)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
