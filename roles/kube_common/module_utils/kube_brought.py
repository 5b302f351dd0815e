"""What stands in a cluster, kind by kind, as a reset asks for it: what bears our mark, what is in a namespace."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.module_utils.kube_client import ask, reason_of
from ansible.module_utils.kube_mark import CLUSTER, label_of
from kubernetes.client.exceptions import ApiException

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = 500
# Made by the server for every namespace, or by whoever elects a leader.
_OF_EVERY_NAMESPACE = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
_NOBODYS = {"Event", "Lease", "Endpoints", "EndpointSlice", "PodMetrics"}


class Kind(NamedTuple):
    """A kind that the server can list and remove."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "") -> str:
        """Return where its objects are, of all namespaces or one."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"


class Unknown(NamedTuple):
    """What could not be read, and why: neither there nor absent."""

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


def listed(api: Any, kind: Kind, namespace: str = "", labels: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a kind.

    Raises:
        ApiException: they cannot be listed.
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


def all_marked(api: Any, kinds: list[Kind], cluster: str) -> tuple[list[dict[str, Any]], list[Unknown]]:
    """Return what bears a cluster's mark, and the kinds of which that could not be read."""
    found: list[dict[str, Any]] = []
    unknown = []
    # Endpoints bear the labels of their Service, with which they go.
    for kind in [kind for kind in kinds if kind.name not in _NOBODYS]:
        try:
            found += listed(api, kind, labels=f"{CLUSTER}={label_of(cluster)}")
        except ApiException as error:
            unknown.append(Unknown(kind.name, reason_of(error)))
    # Events of old servers are in two groups, and so were Ingresses and others.
    return list({one["metadata"]["uid"]: one for one in found}.values()), unknown


def kind_of(definition: Mapping[str, Any]) -> Kind:
    """Return the kind that a resource definition makes, in the version that it is kept in: that needs no converter."""
    spec = definition["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    return Kind(spec["group"], version, spec["names"]["kind"], spec["names"]["plural"], spec["scope"] == "Namespaced")


def is_made_by_another(obj: Mapping[str, Any]) -> bool:
    """Whether an object belongs to another one, with which it goes, or is going."""
    metadata = obj["metadata"]
    return bool(metadata.get("ownerReferences") or metadata.get("deletionTimestamp"))


def left_in(api: Any, kinds: list[Kind], namespace: str) -> tuple[list[dict[str, Any]], list[Unknown]]:
    """Return what is in a namespace and does not go with it as a matter of course; and what could not be read."""
    found: list[dict[str, Any]] = []
    unknown = []
    for kind in kinds:
        if not kind.namespaced or kind.name in _NOBODYS:
            continue
        try:
            found += [one for one in listed(api, kind, namespace) if not is_made_by_another(one) and not _of_every_namespace(one)]
        except ApiException as error:
            unknown.append(Unknown(kind.name, reason_of(error)))
    return list({one["metadata"]["uid"]: one for one in found}.values()), unknown


def _of_every_namespace(obj: Mapping[str, Any]) -> bool:
    annotations = obj["metadata"].get("annotations") or {}
    # The token of an account goes with the account.
    token = obj["kind"] == "Secret" and "kubernetes.io/service-account.name" in annotations
    return token or (obj["kind"], obj["metadata"]["name"]) in _OF_EVERY_NAMESPACE
