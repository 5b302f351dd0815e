"""The mark on what a cluster's hosts.yaml brought to Kubernetes, which is what a reset of it may take away again. Pure.

An object bears it when it was not there before we brought it; a release has a ConfigMap of its own that bears it, since Helm keeps no
words of ours. What was there before stays somebody else's, whatever we write into it.
"""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.kube_client import MANAGER

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER = "primus-bootstrap.io/cluster"
# On the ConfigMap that stands for a release.
RELEASE = "primus-bootstrap.io/release"
# On what was made once and cannot be made again: with it, the data that it opens would be lost.
KEPT = "primus-bootstrap.io/kept"


def label_of(cluster: str) -> str:
    """Return a cluster's name as the value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", cluster)[:63].strip("-_.")


def is_marked(obj: Mapping[str, Any], cluster: str) -> bool:
    """Whether an object bears a cluster's mark."""
    return bool(((obj.get("metadata") or {}).get("labels") or {}).get(CLUSTER) == label_of(cluster))


def marked(obj: dict[str, Any], before: Mapping[str, Any] | None, cluster: str, *, kept: bool = False) -> dict[str, Any]:
    """Return an object with a cluster's mark, where it is that cluster's; without one where it was there before.

    Args:
        obj: What is to be applied.
        before: What is there.
        cluster: The cluster's name; empty marks nothing.
        kept: Whether it is made once and never again.
    """
    metadata, there = obj.get("metadata") or {}, ((before or {}).get("metadata") or {}).get("labels") or {}
    # What is not applied again would be taken away, also from another cluster of ours.
    marks = {name: there[name] for name in (CLUSTER, KEPT) if name in there}
    if cluster and (not before or _only_ours(before)):
        marks = {CLUSTER: label_of(cluster), **({KEPT: "true"} if kept else {}), **marks}
    return {**obj, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **marks}}} if marks else obj


def record_of(release: str, namespace: str, role: str) -> dict[str, Any]:
    """Return the ConfigMap that stands for a release of ours, without the mark."""
    metadata = {"name": f"primus-bootstrap.{release}", "namespace": namespace, "labels": {RELEASE: release}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"role": role}}


def _only_ours(before: Mapping[str, Any]) -> bool:
    """Whether nobody else has written an object: it came before there were marks, or a run ended between the two.

    A namespace that somebody made bears nobody's name on some servers.
    """
    metadata = before["metadata"]
    labels = metadata.get("labels") or {}
    if before["kind"] == "Namespace" or CLUSTER in labels or "meta.helm.sh/release-name" in (metadata.get("annotations") or {}):
        return False
    written = [one for one in metadata.get("managedFields") or () if set(one.get("fieldsV1") or ()) - {"f:status"}]
    return bool(written) and all(one.get("manager") == MANAGER for one in written)
