"""What of a Helm release's objects is no longer as the release says, and whether a hand did it or a program of the cluster.

Helm compares values and versions, and never looks at what became of its objects. What somebody deleted, or wrote with a client that people
use, is brought back with Helm's own name as field manager. What a program of the cluster writes over a field (a certificate that an
injector fills in, a webhook's policy) is its work and stays.
"""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.module_utils.kube_client import resource_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError
from ansible.module_utils.kube_fields import Lost, difference, lost_fields, title, with_found, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# How Helm calls itself where no object is left to tell: by the name of its file, since version 3.
_HELM = "helm"
_RELEASE = "meta.helm.sh/release-name"
# How clients that people use call themselves to the API server; a program's own is the name of its file. `unknown` sends no name at all.
_HANDS = re.compile(r"kubectl|k9s|(free|open)?lens|headlamp|dashboard|Mozilla|node-fetch|OpenAPI-Generator|curl|unknown", re.IGNORECASE)
# Its controller takes one that has ended away.
_GOES_BY_ITSELF = "Job"


class Drift(NamedTuple):
    """What is not as the release says: `wanted` is applied again, `others` are fields that programs of the cluster hold.

    `manager` is the name under which Helm wrote the release, so that its next upgrade finds all of it its own.
    """

    wanted: list[dict[str, Any]]
    names: list[str]
    diffs: list[str]
    others: list[str]
    manager: str = _HELM


def look(cluster: Cluster, objects: Iterable[Mapping[str, Any]], release: str, namespace: str) -> Drift:
    """Compare what a release holds with what is there.

    Args:
        cluster: One that only looks; it takes Helm's name as manager.
        objects: The release's manifest, without its hooks.
        release: Its name.
        namespace: Where its objects are that name none.
    """
    asked = [(given, written(_as_helm_writes(cluster, given, release, namespace))) for given in objects]
    seen = [(given, wanted, cluster.live(wanted)) for given, wanted in asked]
    cluster.manager = next((name for _, _, live in seen for name in _writers(live, f"metadata.annotations.{_RELEASE}")), _HELM)
    found = Drift([], [], [], [], cluster.manager)
    for given, wanted, live in seen:
        if live is None:
            if wanted["kind"] != _GOES_BY_ITSELF:
                _note(found, wanted, f"{title(wanted)} is gone", difference(None, wanted))
            continue
        losses = list(lost_fields(written(given), live))
        if not losses:
            continue
        try:
            never = {one.path for one in lost_fields(wanted, cluster.apply(wanted))}
            # What the server itself does not keep, or writes in its own words, nobody changed.
            hands, others = _by_hand(live, [one for one in losses if one.path not in never])
            if hands:
                yielding = with_found(wanted, others)
                names = ", ".join(one.path for one in hands)
                _note(found, yielding, f"{title(wanted)}: {names}", difference(live, cluster.apply(yielding)))
        except RefusedError as error:
            found.others.append(f"{title(wanted)} differs, and what putting it back would do cannot be asked: {error}")
            continue
        found.others.extend(f"{title(wanted)}: {one.path}" for one in others)
    return found


def heal(cluster: Cluster, drift: Drift) -> None:
    """Bring back what somebody changed or deleted.

    Raises:
        RefusedError: the server does not take it.
    """
    cluster.manager = drift.manager
    for one in drift.wanted:
        cluster.apply(one)


def _note(found: Drift, wanted: dict[str, Any], name: str, diff: str) -> None:
    found.wanted.append(wanted)
    found.names.append(name)
    found.diffs.append(diff)


def _as_helm_writes(cluster: Cluster, given: Mapping[str, Any], release: str, namespace: str) -> dict[str, Any]:
    """Return an object of a manifest with what Helm adds to it: without that, its next upgrade would not take it for its own."""
    metadata = dict(given["metadata"])
    metadata["labels"] = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    own = {_RELEASE: release, "meta.helm.sh/release-namespace": namespace}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **own}
    kind = resource_of(cluster.kinds, given["apiVersion"], given["kind"])
    if kind is not None and kind.namespaced:
        metadata.setdefault("namespace", namespace)
    return {**given, "metadata": metadata}


def _by_hand(live: Mapping[str, Any], losses: Iterable[Lost]) -> tuple[list[Lost], list[Lost]]:
    """Return the fields that somebody changed or took away, and those that a program of the cluster holds."""
    hands: list[Lost] = []
    others: list[Lost] = []
    for one in losses:
        # Of a field that is gone nobody is the writer; programs write, and do not take away.
        somebody = one.dropped or any(_HANDS.match(writer) for writer in _writers(live, _plain(one.path)))
        (hands if somebody else others).append(one)
    return hands, others


def _writers(live: Mapping[str, Any] | None, path: str) -> list[str]:
    """Return the field managers that hold a field of an object."""
    held = ((live or {}).get("metadata") or {}).get("managedFields") or ()
    return [
        one["manager"] for one in held if one.get("manager") and any(_meet(path, field) for field in _fields(one.get("fieldsV1") or {}))
    ]


def _fields(owned: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths that a field manager holds, without telling the items of a list apart."""
    for key, inner in owned.items():
        kind, _, name = key.partition(":")
        where = (f"{path}.{name}" if path else name) if kind == "f" else path
        if inner:
            yield from _fields(inner, where)
        elif where:
            yield where


def _plain(path: str) -> str:
    return re.sub(r"\[[^\]]*\]", "", path)


def _meet(one: str, other: str) -> bool:
    """Whether two fields are the same, or one stands in the other."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
