"""Access to the objects of one job in Kubernetes.

The broker uses `JobObjects` with the kubeconfig. Watchers use `kube_broker.BrokeredCluster`, which has the same methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from primus_bootstrap.launch.watch import kubernetes_objects as manifests
from primus_bootstrap.launch.watch.kube_api import ApiRefusedError

if TYPE_CHECKING:
    from primus_bootstrap.launch.watch.kube_api import Api
    from primus_bootstrap.launch.watch.kubernetes_objects import Kind, Start

LOG_LINES = 40
_FOREGROUND = "Foreground"


class Cluster(Protocol):
    """The objects of a job. Every method raises ApiUnavailableError without an answer, and ApiRefusedError on a refusal."""

    def served(self) -> tuple[Kind, ...]:
        """Return the kinds of objects that the API server supports."""
        ...

    def nodes(self, selector: str) -> list[dict[str, Any]]:
        """Return the Nodes with these labels; all Nodes for an empty selector."""
        ...

    def node(self, name: str) -> dict[str, Any] | None:
        """Return one Node; None if it does not exist."""
        ...

    def tops(self, kind: Kind, attempt: int | None) -> list[dict[str, Any]]:
        """Return the job's objects of a kind, of one attempt or of all."""
        ...

    def pods(self, attempt: int | None) -> list[dict[str, Any]]:
        """Return the job's pods, of one attempt or of all."""
        ...

    def log(self, pod: str) -> str:
        """Return the last lines of a pod of the job."""
        ...

    def create(self, start: Start, form: str, index: int, *, dry_run: bool = False) -> dict[str, Any]:
        """Create one of the objects of an attempt; return it as the server stores it."""
        ...

    def delete(self, kind: Kind, name: str, uid: str) -> None:
        """Delete one of the job's objects by name and uid, with its dependents."""
        ...

    def delete_pod(self, name: str, uid: str, seconds: int) -> None:
        """Delete one of the job's pods by name and uid, with a grace period in seconds."""
        ...


@dataclass(frozen=True)
class JobObjects:
    """The objects of one job in one namespace. Objects of other jobs are neither returned nor changed."""

    api: Api
    job: str
    namespace: str

    def served(self) -> tuple[Kind, ...]:
        """See `Cluster`."""
        groups = {group["name"]: group for group in self.api.get("/apis").get("groups") or ()}
        versions = {name: {one["version"] for one in group.get("versions") or ()} for name, group in groups.items()}
        return tuple(kind for kind in manifests.KINDS if kind.version in versions.get(kind.group, ()))

    def nodes(self, selector: str) -> list[dict[str, Any]]:
        """See `Cluster`."""
        return list(self.api.items("/api/v1/nodes", **({"labelSelector": selector} if selector else {})))

    def node(self, name: str) -> dict[str, Any] | None:
        """See `Cluster`."""
        return self.api.find(f"/api/v1/nodes/{name}")

    def tops(self, kind: Kind, attempt: int | None) -> list[dict[str, Any]]:
        """See `Cluster`."""
        return list(self.api.items(kind.path(self.namespace), labelSelector=manifests.selector(self.job, attempt)))

    def pods(self, attempt: int | None) -> list[dict[str, Any]]:
        """See `Cluster`."""
        return list(self.api.items(self._pod(), labelSelector=manifests.selector(self.job, attempt)))

    def log(self, pod: str) -> str:
        """See `Cluster`."""
        self._is_own(self._pod(pod))
        return self.api.text(f"{self._pod(pod)}/log", container=manifests.CONTAINER, tailLines=str(LOG_LINES))

    def create(self, start: Start, form: str, index: int, *, dry_run: bool = False) -> dict[str, Any]:
        """See `Cluster`."""
        kind, body = manifests.objects(start, form)[index]
        return self.api.create(kind.path(self.namespace), body, **({"dryRun": "All"} if dry_run else {}))

    def delete(self, kind: Kind, name: str, uid: str) -> None:
        """See `Cluster`."""
        self._delete(kind.path(self.namespace, name), uid, {"propagationPolicy": _FOREGROUND})

    def delete_pod(self, name: str, uid: str, seconds: int) -> None:
        """See `Cluster`."""
        self._delete(self._pod(name), uid, {"gracePeriodSeconds": seconds})

    def _delete(self, path: str, uid: str, body: dict[str, Any]) -> None:
        if self._is_own(path):
            self.api.delete(path, {**body, "preconditions": {"uid": uid}})

    def _is_own(self, path: str) -> bool:
        """Return whether an object exists; refuse an object of another job."""
        found = self.api.find(path)
        if found is None:
            return False
        labels = (found.get("metadata") or {}).get("labels") or {}
        if (labels.get(manifests.MANAGED), labels.get(manifests.JOB)) != (manifests.MANAGER, self.job):
            raise ApiRefusedError(403, f"{path} does not belong to the job {self.job}")
        return True

    def _pod(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods{'/' + name if name else ''}"
