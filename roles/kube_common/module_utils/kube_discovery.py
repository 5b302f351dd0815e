"""List the objects of all kinds for a reset: those with the cluster's label, and those in a namespace."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.module_utils.kube_client import ask, reason_of
from ansible.module_utils.kube_mark import CLUSTER_LABEL, label_value
from kubernetes.client.exceptions import ApiException

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = 500
# The server creates these in every namespace.
_DEFAULT_OBJECTS = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
# Controllers create and remove objects of these kinds.
_AUTOMATIC_KINDS = {"Event", "Lease", "Endpoints", "EndpointSlice", "PodMetrics"}


class Kind(NamedTuple):
    """A kind whose objects the server can list and delete."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "") -> str:
        """Return the URL path of its objects, in all namespaces or in one."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"


class Unknown(NamedTuple):
    """What could not be read, and why. It may or may not exist."""

    what: str
    why: str


def kinds_of(api: Any) -> tuple[list[Kind], list[Unknown]]:
    """Return every kind in the version that the server prefers, and the groups that could not be read."""
    groups = [("", "v1"), *(tuple(one["preferredVersion"]["groupVersion"].split("/")) for one in ask(api, "/apis")["groups"])]
    found, unknown = [], []
    for group, version in groups:
        try:
            resources = ask(api, f"/apis/{group}/{version}" if group else f"/api/{version}")["resources"]
        except ApiException as error:
            unknown.append(Unknown(f"{group}/{version}", reason_of(error)))
            continue
        found += [
            Kind(group, version, one["kind"], one["name"], one["namespaced"])
            for one in resources
            if "/" not in one["name"] and {"list", "delete"} <= set(one["verbs"])
        ]
    return found, unknown


def list_objects(api: Any, kind: Kind, namespace: str = "", labels: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a kind, page by page.

    Raises:
        ApiException: They cannot be listed.
    """
    query = {"limit": str(PAGE), **({"labelSelector": labels} if labels else {})}
    version = f"{kind.group}/{kind.version}" if kind.group else kind.version
    while True:
        answer = ask(api, kind.path(namespace), **query)
        for one in answer["items"]:
            yield {"apiVersion": version, "kind": kind.name, **one}
        query["continue"] = (answer.get("metadata") or {}).get("continue") or ""
        if not query["continue"]:
            return


def labelled_objects(api: Any, kinds: list[Kind], cluster: str) -> tuple[list[dict[str, Any]], list[Unknown]]:
    """Return the objects with a cluster's label, and the kinds that could not be read."""
    found: list[dict[str, Any]] = []
    unknown = []
    # Endpoints have the labels of their Service, and are deleted with it.
    for kind in [kind for kind in kinds if kind.name not in _AUTOMATIC_KINDS]:
        try:
            found += list_objects(api, kind, labels=f"{CLUSTER_LABEL}={label_value(cluster)}")
        except ApiException as error:
            unknown.append(Unknown(kind.name, reason_of(error)))
    # Old servers serve some kinds (Event, Ingress) in two groups.
    return list({one["metadata"]["uid"]: one for one in found}.values()), unknown


def kind_of(definition: Mapping[str, Any]) -> Kind:
    """Return the kind of a resource definition, in its storage version, which needs no conversion webhook."""
    spec = definition["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    return Kind(spec["group"], version, spec["names"]["kind"], spec["names"]["plural"], spec["scope"] == "Namespaced")


def is_owned_or_deleted(obj: Mapping[str, Any]) -> bool:
    """Return whether an object has an owner, with which it is deleted, or is being deleted."""
    metadata = obj["metadata"]
    return bool(metadata.get("ownerReferences") or metadata.get("deletionTimestamp"))


def namespace_content(api: Any, kinds: list[Kind], namespace: str) -> tuple[list[dict[str, Any]], list[Unknown]]:
    """Return the objects that people or charts created in a namespace, and the kinds that could not be read."""
    found: list[dict[str, Any]] = []
    unknown = []
    for kind in kinds:
        if not kind.namespaced or kind.name in _AUTOMATIC_KINDS:
            continue
        try:
            found += [one for one in list_objects(api, kind, namespace) if not is_owned_or_deleted(one) and not _is_default_object(one)]
        except ApiException as error:
            unknown.append(Unknown(kind.name, reason_of(error)))
    return list({one["metadata"]["uid"]: one for one in found}.values()), unknown


def _is_default_object(obj: Mapping[str, Any]) -> bool:
    annotations = obj["metadata"].get("annotations") or {}
    # The token of a service account is deleted with the account.
    token = obj["kind"] == "Secret" and "kubernetes.io/service-account.name" in annotations
    return token or (obj["kind"], obj["metadata"]["name"]) in _DEFAULT_OBJECTS
