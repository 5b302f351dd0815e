"""Find objects of a Helm release that differ from its manifest, and tell changes by people from changes by programs of the cluster.

Helm compares values and versions only, and never checks its objects. Objects that somebody deleted, and fields that somebody changed with
an interactive client, are restored with Helm's name as field manager. Fields that a program of the cluster sets (a certificate that an
injector fills in, a policy of a webhook) are left as they are.
"""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.module_utils.kube_client import resource_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError
from ansible.module_utils.kube_fields import Lost, difference, lost_fields, title, with_found, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Helm's field manager is the name of its program file (since version 3). This is the default if no object of the release is left.
_HELM = "helm"
_RELEASE = "meta.helm.sh/release-name"
# Field managers of interactive clients; a program's field manager is the name of its file. `unknown`: the client sent no name.
_INTERACTIVE = re.compile(
    r"kubectl|k9s|(free|open)?lens|headlamp|dashboard|Mozilla|node-fetch|OpenAPI-Generator|curl|unknown", re.IGNORECASE
)
# A controller removes finished Jobs.
_REMOVED_AUTOMATICALLY = "Job"


class Drift(NamedTuple):
    """The differences from a release: objects to apply again (`wanted`), and fields that programs of the cluster set (`others`).

    `manager` is the field manager with which Helm wrote the release, so that its next upgrade owns the restored fields.
    """

    wanted: list[dict[str, Any]]
    names: list[str]
    diffs: list[str]
    others: list[str]
    manager: str = _HELM


def find_drift(cluster: Cluster, objects: Iterable[Mapping[str, Any]], release: str, namespace: str) -> Drift:
    """Compare the manifest of a release with the objects in the cluster.

    Args:
        cluster: One with `dry_run`; its field manager is set to Helm's.
        objects: The manifest of the release, without hooks.
        release: The name of the release.
        namespace: The namespace of objects that name none.
    """
    expected = [(given, written(_as_helm_writes(cluster, given, release, namespace))) for given in objects]
    compared = [(given, wanted, cluster.live(wanted)) for given, wanted in expected]
    cluster.manager = next((name for _, _, live in compared for name in _managers(live, f"metadata.annotations.{_RELEASE}")), _HELM)
    found = Drift([], [], [], [], cluster.manager)
    for given, wanted, live in compared:
        if live is None:
            if wanted["kind"] != _REMOVED_AUTOMATICALLY:
                _add(found, wanted, f"{title(wanted)} was deleted", difference(None, wanted))
            continue
        losses = list(lost_fields(written(given), live))
        if not losses:
            continue
        try:
            # Fields that the server does not keep, or writes differently, were not changed by anybody.
            never_kept = {one.path for one in lost_fields(wanted, cluster.apply(wanted))}
            by_people, others = _split(live, [one for one in losses if one.path not in never_kept])
            if by_people:
                restored = with_found(wanted, others)
                names = ", ".join(one.path for one in by_people)
                _add(found, restored, f"{title(wanted)}: {names}", difference(live, cluster.apply(restored)))
        except RefusedError as error:
            found.others.append(f"{title(wanted)} differs, and a dry run of restoring it failed: {error}")
            continue
        found.others.extend(f"{title(wanted)}: {one.path}" for one in others)
    return found


def repair(cluster: Cluster, drift: Drift) -> None:
    """Apply the objects that somebody changed or deleted.

    Raises:
        RefusedError: The server refuses one.
    """
    cluster.manager = drift.manager
    for one in drift.wanted:
        cluster.apply(one)


def _add(found: Drift, wanted: dict[str, Any], name: str, diff: str) -> None:
    found.wanted.append(wanted)
    found.names.append(name)
    found.diffs.append(diff)


def _as_helm_writes(cluster: Cluster, given: Mapping[str, Any], release: str, namespace: str) -> dict[str, Any]:
    """Return an object of a manifest with the labels and annotations that Helm adds, by which Helm recognizes its objects."""
    metadata = dict(given["metadata"])
    metadata["labels"] = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    own = {_RELEASE: release, "meta.helm.sh/release-namespace": namespace}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **own}
    kind = resource_of(cluster.kinds, given["apiVersion"], given["kind"])
    if kind is not None and kind.namespaced:
        metadata.setdefault("namespace", namespace)
    return {**given, "metadata": metadata}


def _split(live: Mapping[str, Any], losses: Iterable[Lost]) -> tuple[list[Lost], list[Lost]]:
    """Return the fields that people changed or removed, and those that a program of the cluster set."""
    by_people: list[Lost] = []
    others: list[Lost] = []
    for one in losses:
        # A removed field has no field manager. Programs set fields and do not remove them.
        is_interactive = one.dropped or any(_INTERACTIVE.match(manager) for manager in _managers(live, _without_items(one.path)))
        (by_people if is_interactive else others).append(one)
    return by_people, others


def _managers(live: Mapping[str, Any] | None, path: str) -> list[str]:
    """Return the field managers of a field."""
    held = ((live or {}).get("metadata") or {}).get("managedFields") or ()
    return [
        one["manager"] for one in held if one.get("manager") and any(_overlap(path, field) for field in _fields(one.get("fieldsV1") or {}))
    ]


def _fields(owned: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of a field manager, without list items."""
    for key, inner in owned.items():
        kind, _, name = key.partition(":")
        where = (f"{path}.{name}" if path else name) if kind == "f" else path
        if inner:
            yield from _fields(inner, where)
        elif where:
            yield where


def _without_items(path: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", path)


def _overlap(one: str, other: str) -> bool:
    """Return whether two fields are the same, or one contains the other."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
