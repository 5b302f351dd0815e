"""A few objects of our own, applied by the server and read back, or deleted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.api import APPLY, ApiError
from primus_bootstrap.kubernetes.nodes import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from primus_bootstrap.kubernetes.api import Api

# Where objects of a kind stand.
_PLACES = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts/{name}",
    "Secret": "/api/v1/namespaces/{namespace}/secrets/{name}",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps/{name}",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{name}",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}",
}


def path_of(wanted: Mapping[str, Any]) -> str:
    """Return where an object stands."""
    return _PLACES[wanted["kind"]].format(**{"namespace": "", **wanted["metadata"]})


def bring(api: Api, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> bool:
    """Apply objects in order; tell whether any was changed.

    Raises:
        RunError: the server refuses, or dropped a field.
    """
    changed = False
    for wanted in objects:
        path = path_of(wanted)
        before = _found(api, path)
        after = api.patch(path, wanted, kind=APPLY, dry_run=dry_run)
        if lost := lost_fields(wanted, after):
            what = f"the API server took {wanted['kind']} {wanted['metadata']['name']} and dropped {', '.join(lost)}"
            raise RunError(what, fix="it is too old for this field, or an admission webhook takes it off")
        changed |= _content(before) != _content(after)
    return changed


def remove(api: Api, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> bool:
    """Delete objects, the last one first; tell whether any was there."""
    there = [path for wanted in objects if _found(api, path := path_of(wanted))]
    for path in reversed([] if dry_run else there):
        api.delete(path)
    return bool(there)


def lost_fields(wanted: Any, found: Any, where: str = "") -> list[str]:
    """Return the fields that were wanted and are not there."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [where]
        return [lost for key, value in wanted.items() for lost in lost_fields(value, found.get(key), f"{where}.{key}".lstrip("."))]
    return [] if wanted == found else [where]


def _found(api: Api, path: str) -> dict[str, Any]:
    try:
        return api.get(path)
    except ApiError as error:
        if error.status == MISSING:
            return {}
        raise


def _content(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what the server keeps about it."""
    metadata = {key: one.get("metadata", {}).get(key) for key in ("name", "namespace", "labels", "annotations")}
    return {**{key: value for key, value in one.items() if key != "metadata"}, "metadata": metadata}
