"""Apply or delete a few objects of this project with server-side apply, and check the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.api import APPLY, ApiError
from primus_bootstrap.kubernetes.nodes import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.kubernetes.api import Api

# The API path of an object of each kind.
_PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts/{name}",
    "Secret": "/api/v1/namespaces/{namespace}/secrets/{name}",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps/{name}",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{name}",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}",
}


def path_of(desired: Mapping[str, Any]) -> str:
    """Return the API path of an object."""
    return _PATHS[desired["kind"]].format(**{"namespace": "", **desired["metadata"]})


def apply_objects(api: Api, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> bool:
    """Apply objects in order; return whether any changed.

    Raises:
        RunError: The server refused an object or dropped a field.
    """
    changed = False
    for desired in objects:
        path = path_of(desired)
        before = _found(api, path)
        after = api.patch(path, desired, kind=APPLY, dry_run=dry_run)
        if lost := lost_fields(desired, after):
            what = f"the API server stored {desired['kind']} {desired['metadata']['name']} without {', '.join(lost)}"
            raise RunError(what, fix="upgrade Kubernetes if it is too old for this field, or find the admission webhook that removes it")
        changed |= _content(before) != _content(after)
    return changed


def remove(api: Api, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> bool:
    """Delete objects, the last one first; return whether any existed."""
    existing = [path for desired in objects if _found(api, path := path_of(desired))]
    for path in reversed([] if dry_run else existing):
        api.delete(path)
    return bool(existing)


def lost_fields(desired: Any, actual: Any, where: str = "") -> list[str]:
    """Return the desired fields that are missing or different."""
    if isinstance(desired, dict):
        if not isinstance(actual, dict):
            return [where]
        return [lost for key, value in desired.items() for lost in lost_fields(value, actual.get(key), f"{where}.{key}".lstrip("."))]
    return [] if desired == actual else [where]


def _found(api: Api, path: str) -> dict[str, Any]:
    try:
        return api.get(path)
    except ApiError as error:
        if error.status == MISSING:
            return {}
        raise


def _content(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without the metadata that the server manages."""
    metadata = {key: one.get("metadata", {}).get(key) for key in ("name", "namespace", "labels", "annotations")}
    return {**{key: value for key, value in one.items() if key != "metadata"}, "metadata": metadata}
