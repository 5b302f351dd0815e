"""Compare Kubernetes objects field by field: dropped and changed fields, differences as text, conditions. Pure functions."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

import base64
import copy
import difflib
import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# Values that a server may omit because they mean the same as absence (Go's `omitempty`).
_EMPTY: tuple[Any, ...] = (None, "", 0, False, [], {})
# Fields that identify the items of a list, in this order, like the list types of the API.
_KEYS = ("name", "key", "containerPort", "port", "mountPath", "type", "url")
# Metadata that the server sets.
_SERVER_METADATA = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
_QUANTITY = re.compile(r"^([0-9.]+)([numkMGTPE]i?|)$")
_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FACTORS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)} | {"ki": 1024.0}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: a bare `=`, which the definitions of the Prometheus operator contain, is a text."""


_Loader.yaml_implicit_resolvers = {first: rules for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items() if first != "="}


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest, including the items of a List."""
    # A template may leave a comment directly after `---`, which Helm accepts and YAML does not.
    parts = re.split(r"(?m)^---(?=[\s#]|$)", text)
    found = [one for part in parts if isinstance(one := yaml.load(part, Loader=_Loader), dict)]  # noqa: S506 - a safe one
    return [inner for one in found for inner in (one["items"] if one.get("kind") == "List" else [one])]


class Lost(NamedTuple):
    """A field that does not have the requested value: `dropped` if it is absent, else `found` is its value.

    `steps` is its path in the requested object: field names and item numbers.
    """

    path: str
    asked: Any
    found: Any = None
    dropped: bool = True
    steps: tuple[str | int, ...] = ()


def title(obj: Mapping[str, Any]) -> str:
    """Return the name of an object for messages: Kind namespace/name."""
    metadata = obj.get("metadata") or {}
    name = f"{metadata['namespace']}/{metadata.get('name')}" if metadata.get("namespace") else str(metadata.get("name"))
    return f"{obj.get('kind')} {name}"


def written(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as the server stores it: a Secret's stringData is in data, as base64."""
    result = dict(obj)
    if obj.get("kind") == "Secret" and "stringData" in obj:
        texts = {name: base64.b64encode(str(text).encode()).decode() for name, text in obj["stringData"].items()}
        result["data"] = {**(obj.get("data") or {}), **texts}
        del result["stringData"]
    return result


def lost_fields(asked: Any, found: Any, path: str = "", steps: tuple[str | int, ...] = ()) -> Iterator[Lost]:
    """Yield each requested field that is absent or has another value; of an absent branch only its top."""
    if isinstance(asked, dict) and isinstance(found, dict):
        for name, value in asked.items():
            where = f"{path}.{name}" if path else str(name)
            if name in found:
                yield from lost_fields(value, found[name], where, (*steps, name))
            elif value not in _EMPTY:
                yield Lost(where, value, steps=(*steps, name))
    elif isinstance(asked, list) and isinstance(found, list):
        yield from _lost_items(asked, found, path, steps)
    elif not same_value(asked, found) and not (asked in _EMPTY and found in _EMPTY):
        yield Lost(path, asked, found, dropped=False, steps=steps)


def _lost_items(asked: Sequence[Any], found: Sequence[Any], path: str, steps: tuple[str | int, ...]) -> Iterator[Lost]:
    key = next((key for key in _KEYS if asked and all(isinstance(item, dict) and key in item for item in asked)), "")
    for number, item in enumerate(asked):
        if key:
            others = [other for other in found if isinstance(other, dict) and same_value(other.get(key), item[key])]
            where = f"{path}[{key}={item[key]}]"
        else:
            others, where = list(found[number : number + 1]), f"{path}[{number}]"
        losses = [list(lost_fields(item, other, where, (*steps, number))) for other in others]
        yield from min(losses, key=len) if losses else [Lost(where, item, steps=(*steps, number))]


def with_found(asked: Mapping[str, Any], losses: Iterable[Lost]) -> dict[str, Any]:
    """Return the requested object with the found values of some fields."""
    result: dict[str, Any] = copy.deepcopy(dict(asked))
    for one in losses:
        inner: Any = result
        for step in one.steps[:-1]:
            inner = inner[step]
        inner[one.steps[-1]] = one.found
    return result


def same_value(one: Any, other: Any) -> bool:
    """Whether two values mean the same to the API: 1 and "1", 1000m and 1, 1024Mi and 1Gi do."""
    if one == other:
        return type(one) is type(other) or not isinstance(one, bool) ^ isinstance(other, bool)
    if isinstance(one, (dict, list)) or isinstance(other, (dict, list)) or isinstance(one, bool) or isinstance(other, bool):
        return False
    left, right = _QUANTITY.match(str(one)), _QUANTITY.match(str(other))
    if not left or not right or left[2] not in _FACTORS or right[2] not in _FACTORS:
        return str(one) == str(other)
    return abs(float(left[1]) * _FACTORS[left[2]] - float(right[1]) * _FACTORS[right[2]]) < 1e-9


def without_server_fields(obj: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an object without its status and without metadata that the server sets."""
    if not obj:
        return {}
    metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if name not in _SERVER_METADATA}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}


def masked(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that may be printed: a Secret's values are replaced by short hashes."""
    result = dict(obj)
    if obj.get("kind") == "Secret":
        for field in ("data", "stringData"):
            if isinstance(obj.get(field), dict):
                result[field] = {name: f"(secret, {_short_hash(value)})" for name, value in obj[field].items()}
    return result


def _short_hash(value: Any) -> str:
    # Too short to find the value, long enough to show that it changed.
    return hashlib.sha256(str(value).encode()).hexdigest()[:6]


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Return the change of one object as a unified difference of YAML; empty if nothing changes."""
    texts = [
        yaml.safe_dump(masked(without_server_fields(one)), sort_keys=True, width=140).splitlines() if one else [] for one in (before, after)
    ]
    name = title(after or before or {})
    return "\n".join(difflib.unified_diff(*texts, f"live: {name}", f"wanted: {name}", lineterm="", n=2))


def meets(obj: Mapping[str, Any] | None, want: Mapping[str, Any], unready_nodes: int = 0) -> tuple[bool, str]:
    """Return whether an object meets a requirement, and its current state.

    `want` has `condition` (`exists`, `rollout`, or a condition that must be True), or `field` (a path with dots) and, if it must
    have a certain value, `value`. `unready_nodes`: pods of a DaemonSet on nodes that are not ready, which its status counts as wanted.
    """
    if obj is None:
        return False, "it does not exist"
    if field := want.get("field"):
        found = _at(obj, field)
        fits = same_value(found, want["value"]) if want.get("value") is not None else found not in _EMPTY
        return fits, f"{field} is {found!r}"
    condition = want.get("condition") or "exists"
    if condition == "exists":
        return True, ""
    return _rolled_out(obj, unready_nodes) if condition == "rollout" else _condition(obj, condition)


def _at(obj: Any, path: str) -> Any:
    for name in path.split("."):
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def _condition(obj: Mapping[str, Any], name: str) -> tuple[bool, str]:
    status = obj.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    if name not in conditions:
        return False, f"it has no condition {name} yet"
    one = conditions[name]
    # A condition may still describe the state before the last change.
    seen, now = one.get("observedGeneration"), (obj.get("metadata") or {}).get("generation")
    if seen is not None and now is not None and int(seen) < int(now):
        return False, f"{name} is of generation {seen}, and the object is at {now}"
    because = " ".join(str(one[key]) for key in ("reason", "message") if one.get(key))
    return one.get("status") == "True", f"{name}={one.get('status')} {because}".strip()


def _rolled_out(obj: Mapping[str, Any], unready_nodes: int) -> tuple[bool, str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    generation = (obj.get("metadata") or {}).get("generation") or 0
    if (status.get("observedGeneration") or 0) < generation:
        return False, "its controller has not seen the last change yet"
    if obj.get("kind") == "DaemonSet":
        wanted = (status.get("desiredNumberScheduled") or 0) - unready_nodes
        ready, new = status.get("numberReady") or 0, status.get("updatedNumberScheduled") or 0
    else:
        wanted = spec["replicas"] if spec.get("replicas") is not None else 1
        ready, new = status.get("readyReplicas") or 0, status.get("updatedReplicas") or 0
    uncounted = f", not counting {unready_nodes} on nodes that are not ready" if unready_nodes else ""
    return ready >= wanted and new >= wanted, f"{ready} of {wanted} pods ready, {new} of the last change{uncounted}"
