"""The label with the cluster's name on objects that its hosts.yaml created in Kubernetes. A reset removes only these. Pure functions.

An object gets the label if it did not exist before. A Helm release is recorded by a ConfigMap with the label, because Helm stores no
labels of ours. Objects that existed before never get it, even if we change them.
"""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.kube_client import MANAGER

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER_LABEL = "primus-bootstrap.io/cluster"
# On the ConfigMap that records a release.
RELEASE_LABEL = "primus-bootstrap.io/release"
# On objects that are generated once, such as passwords: without them the data that they protect would be lost.
KEEP_LABEL = "primus-bootstrap.io/kept"


def label_value(cluster: str) -> str:
    """Return a cluster's name as the value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", cluster)[:63].strip("-_.")


def has_cluster_label(obj: Mapping[str, Any], cluster: str) -> bool:
    """Return whether an object has the label with this cluster's name."""
    return bool(((obj.get("metadata") or {}).get("labels") or {}).get(CLUSTER_LABEL) == label_value(cluster))


def with_cluster_label(obj: dict[str, Any], before: Mapping[str, Any] | None, cluster: str, *, keep: bool = False) -> dict[str, Any]:
    """Return an object with the cluster's label, unless it existed before and somebody else has written it.

    Args:
        obj: The object to apply.
        before: The existing object, or None.
        cluster: The cluster's name; empty adds no label.
        keep: Whether it is generated once and never changed.
    """
    metadata, existing = obj.get("metadata") or {}, ((before or {}).get("metadata") or {}).get("labels") or {}
    # A server-side apply without an existing label would remove it, even the label of another cluster.
    added = {name: existing[name] for name in (CLUSTER_LABEL, KEEP_LABEL) if name in existing}
    if cluster and (not before or _only_ours(before)):
        added = {CLUSTER_LABEL: label_value(cluster), **({KEEP_LABEL: "true"} if keep else {}), **added}
    return {**obj, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **added}}} if added else obj


def release_record(release: str, namespace: str, role: str) -> dict[str, Any]:
    """Return the ConfigMap that records a release of ours, without the cluster's label."""
    metadata = {"name": f"primus-bootstrap.{release}", "namespace": namespace, "labels": {RELEASE_LABEL: release}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"role": role}}


def _only_ours(before: Mapping[str, Any]) -> bool:
    """Return whether only this project has written an object that has no label: an earlier version, or a run that was killed.

    False for namespaces: some servers record no field manager for a namespace that somebody else created.
    """
    metadata = before["metadata"]
    labels = metadata.get("labels") or {}
    if before["kind"] == "Namespace" or CLUSTER_LABEL in labels or "meta.helm.sh/release-name" in (metadata.get("annotations") or {}):
        return False
    written = [one for one in metadata.get("managedFields") or () if set(one.get("fieldsV1") or ()) - {"f:status"}]
    return bool(written) and all(one.get("manager") == MANAGER for one in written)
