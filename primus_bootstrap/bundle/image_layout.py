"""Carry images in a bundle, as an OCI image layout, which skopeo and other tools copy to a registry.

Format: https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bundle import registry
from primus_bootstrap.bundle.artifacts import BundleError
from primus_bootstrap.bundle.web import sha256_of
from primus_bootstrap.core.atomic_files import write_if_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from primus_bootstrap.bundle.artifacts import Locked

FOLDER = "images"
PART = ".part"
_INDEX = "index.json"
_LAYOUT = {"imageLayoutVersion": "1.0.0"}
_NAME = "org.opencontainers.image.ref.name"
_DEFAULT_TYPE = "application/vnd.oci.image.manifest.v1+json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Blob:
    """One part of an image: a manifest, a configuration or a layer."""

    sha256: str
    is_manifest: bool


def fetch(items: Iterable[Locked], folder: Path, progress: Callable[[str], None]) -> dict[str, str]:
    """Download the missing parts of images into the layout of a bundle; return the failures by image.

    A part gets its name after its checksum was compared, so the next call continues after an interruption.
    """
    failed: dict[str, str] = {}
    complete: list[Locked] = []
    for item in items:
        try:
            progress(f"image {item.name}: {_fetch_image(item, folder)} parts downloaded")
            complete.append(item)
        except BundleError as error:
            failed[f"image {item.name}"] = error.what
    write_if_changed(folder / FOLDER / "oci-layout", json.dumps(_LAYOUT), mode=0o644)
    write_if_changed(folder / FOLDER / _INDEX, _index_text(complete, folder), mode=0o644)
    return failed


def exists(folder: Path) -> bool:
    """Return whether a bundle contains images."""
    return (folder / FOLDER / _INDEX).is_file()


def faults(items: Iterable[Locked], folder: Path) -> Iterator[tuple[Locked, str, str]]:
    """Compare every part of images with its digest; yield each image with the path of the part, and `missing` or `damaged`."""
    for item in items:
        todo, seen = [Blob(item.sha256, is_manifest=True)], set()
        while todo:
            blob = todo.pop()
            path = _blob_path(folder, blob)
            if blob in seen:
                continue
            seen.add(blob)
            if not path.is_file():
                yield item, str(path.relative_to(folder)), "missing"
            elif sha256_of(path) != blob.sha256:
                yield item, str(path.relative_to(folder)), "damaged"
            elif blob.is_manifest:
                todo += _parts(path.read_bytes(), item.name)


def names(items: Iterable[Locked], folder: Path) -> set[str]:
    """Return the paths in a bundle that belong to images."""
    found = {f"{FOLDER}/oci-layout", f"{FOLDER}/{_INDEX}"}
    for item in items:
        todo = [Blob(item.sha256, is_manifest=True)]
        while todo:
            blob = todo.pop()
            path = _blob_path(folder, blob)
            name = str(path.relative_to(folder))
            if name not in found and path.is_file():
                found.add(name)
                todo += _parts(path.read_bytes(), item.name) if blob.is_manifest and sha256_of(path) == blob.sha256 else []
    return found


def _fetch_image(item: Locked, folder: Path) -> int:
    """Download what is missing of an image and return the number of downloaded parts. Layers come before the manifest that names them."""
    return _fetch_blob(Blob(item.sha256, is_manifest=True), item, folder)


def _fetch_blob(blob: Blob, item: Locked, folder: Path) -> int:
    target = _blob_path(folder, blob)
    is_whole = target.is_file() and sha256_of(target) == blob.sha256
    if is_whole and not blob.is_manifest:
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{PART}")
    try:
        if not is_whole:
            registry.fetch_blob(item.url, blob.sha256, part, is_manifest=blob.is_manifest)
            if (found := sha256_of(part)) != blob.sha256:
                raise BundleError(f"the registry answered with sha256:{found} for sha256:{blob.sha256}", fix=registry.FIX)
        content = (target if is_whole else part).read_bytes() if blob.is_manifest else b""
        count = sum(_fetch_blob(inner, item, folder) for inner in _parts(content, item.name)) if blob.is_manifest else 0
        if not is_whole:
            part.chmod(0o644)
            part.replace(target)
        return count + (not is_whole)
    finally:
        part.unlink(missing_ok=True)


def _parts(manifest: bytes, shown: str) -> list[Blob]:
    """Return what a manifest names: the manifests of an index, else the configuration and the layers."""
    try:
        content: Mapping[str, Any] = json.loads(manifest)
        inner = [Blob(_sha256(one), is_manifest=True) for one in content.get("manifests") or ()]
        config = [content["config"]] if "config" in content else []
        return inner + [Blob(_sha256(one), is_manifest=False) for one in (*config, *(content.get("layers") or ()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{shown}: its manifest cannot be read: {error}", fix=registry.FIX) from error


def _sha256(descriptor: Mapping[str, Any]) -> str:
    digest = str(descriptor["digest"])
    # It becomes a file's name.
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a SHA-256 digest")
    return digest.removeprefix("sha256:")


def _blob_path(folder: Path, blob: Blob) -> Path:
    return folder / FOLDER / "blobs" / "sha256" / blob.sha256


def _index_text(items: Iterable[Locked], folder: Path) -> str:
    listed = []
    for item in sorted(items, key=lambda one: one.name):
        content = _blob_path(folder, Blob(item.sha256, is_manifest=True)).read_bytes()
        kind = json.loads(content).get("mediaType") or _DEFAULT_TYPE
        descriptor = {"mediaType": kind, "digest": f"sha256:{item.sha256}", "size": len(content)}
        listed.append({**descriptor, "annotations": {_NAME: item.name}})
    return json.dumps({"schemaVersion": 2, "manifests": listed}, indent=2)
