# ruff: noqa: INP001 (Ansible loads it by path)
"""Filter `kube_image_digests`: add the digests of a lock file to values and objects of a chart, so that nodes pull the locked images."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pulling-manifests
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def kube_image_digests(content: Any, locked: Iterable[Mapping[str, str]], places: Iterable[Mapping[str, str]] = ()) -> Any:
    """Return a copy of a chart's values or objects with digests.

    Args:
        content: Values of a chart, or Kubernetes objects. A text that is a reference NAME:TAG of the lock becomes NAME:TAG@sha256:DIGEST.
        locked: Images of the lock file, with `name` (NAME:TAG) and `sha256`.
        places: Values that are only a part of a reference: `image` is its path without server and tag, `value` is the path of the value,
            and `form` is what the chart expects there: `tag`, `sha` (hexadecimal) or `digest` (with sha256:).
    """
    digests = {str(one["name"]): str(one["sha256"]) for one in locked if one.get("sha256") and "@" not in str(one["name"])}
    pinned = _with_references(content, digests)
    for place in places:
        _pin(pinned, place, digests)
    return pinned


def _with_references(item: Any, digests: Mapping[str, str]) -> Any:
    if isinstance(item, dict):
        return {key: _with_references(value, digests) for key, value in item.items()}
    if isinstance(item, list):
        return [_with_references(value, digests) for value in item]
    return f"{item}@sha256:{digests[item]}" if isinstance(item, str) and item in digests else item


def _pin(values: dict[str, Any], place: Mapping[str, str], digests: Mapping[str, str]) -> None:
    """Set one value. It stays if the site has set a digest, or if the lock has no image or several images for it."""
    *parents, key = place["value"].split(".")
    node = values
    for parent in parents:
        node = node.get(parent) or {}
    tag = str(node.get("tag" if place["form"] != "tag" else key) or "")
    if "@" in tag or (place["form"] != "tag" and node.get(key)):
        return
    found = [(one, digest) for one, digest in _tags_of(place["image"], digests) if tag in ("", one)]
    if len(found) != 1:
        return
    [(one, digest)] = found
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
    node[key] = {"tag": f"{one}@sha256:{digest}", "sha": digest, "digest": f"sha256:{digest}"}[place["form"]]


def _tags_of(path: str, digests: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return tag and digest of each locked image with this path, on whatever server."""
    found = []
    for name, digest in digests.items():
        repository, _, tag = name.rpartition(":")
        if _TAG.fullmatch(tag) and (repository == path or repository.endswith(f"/{path}")):
            found.append((tag, digest))
    return found


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"kube_image_digests": kube_image_digests}
