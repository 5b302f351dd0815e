"""Test images in a bundle with a real registry and skopeo."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bundle import folder as bundle
from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Requirement, Unresolved
from primus_bootstrap.bundle.lock import make_lock
from primus_bootstrap.bundle.lock_file import lock_text, parse_lock
from tests.waiting import listens, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAMS = ("docker-registry", "skopeo")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (packages of Debian with these names)")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Run a registry on loopback; return its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    config = tmp_path / "registry.yml"
    config.write_text(json.dumps(settings))
    with subprocess.Popen(["docker-registry", "serve", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: listens("127.0.0.1", port))
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def skopeo(*words: str) -> str:
    """Run skopeo without TLS; return its output."""
    return subprocess.run(["skopeo", "--insecure-policy", *words], check=True, capture_output=True, text=True, timeout=120).stdout


def put(folder: Path, content: bytes, kind: str, **more: Any) -> dict[str, Any]:
    """Write a blob into a layout; return its descriptor."""
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / "sha256" / sha256).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{sha256}", "size": len(content), **more}


def push(folder: Path, reference: str, text: str) -> str:
    """Push an image for two platforms; return the digest of its index."""
    platforms = []
    for machine in ("amd64", "arm64"):
        layer = put(folder, f"{text} for {machine}".encode() * 1000, LAYER)
        settings = {"architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
        config = put(folder, json.dumps(settings).encode(), CONFIG)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}).encode()
        platforms.append(put(folder, manifest, MANIFEST, platform={"architecture": machine, "os": "linux"}))
    index = put(folder, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms}).encode(), INDEX)
    named = {**index, "annotations": {"org.opencontainers.image.ref.name": "it"}}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    skopeo("copy", "--all", "--preserve-digests", "--dest-tls-verify=false", f"oci:{folder}:it", f"docker://{reference}")
    return str(index["digest"])


def lock_image(reference: str, before: Lock, folder: Path) -> tuple[Lock, tuple[Unresolved, ...]]:
    """Lock one image."""
    needs = Needs((Requirement(Need("image", reference), ("role",), ("all",), ("host",)),), ())
    return make_lock(needs, before, sources=lambda _: Sources(""), folder=folder, progress=lambda _: None)


def create(lock: Lock, out: Path, *, images: bool) -> dict[str, str]:
    """Create the bundle; return the failures."""
    return bundle.create(lock, out, sources=lambda _: Sources(""), cache=out.parent / "cache", progress=lambda _: None, images=images)


def test_image_is_locked_by_its_digest_and_a_moved_tag_is_refused(tmp_path: Path, registry: str) -> None:
    """The lock has NAME:TAG@DIGEST. If the tag points to another image, the entry stays, and the message has both digests and a fix."""
    reference = f"{registry}/team/tool:1"
    first = push(tmp_path / "first", reference, "a tool")
    lock, unresolved = lock_image(reference, Lock(), tmp_path)
    again, _ = lock_image(reference, lock, tmp_path)
    second = push(tmp_path / "second", reference, "another tool")
    kept, moved = lock_image(reference, parse_lock(lock_text(lock), "it"), tmp_path)
    accepted, _ = lock_image(reference, Lock(), tmp_path)

    assert unresolved == ()
    assert [item.url for item in lock.items] == [f"{reference}@{first}"]
    assert again == lock == kept
    assert [one.reason for one in moved] == [f"its tag points to {second} now, and the lock has {first}"]
    assert "bundle.lock.yaml" in moved[0].fix
    assert [item.url for item in accepted.items] == [f"{reference}@{second}"]


def test_images_are_carried_compared_and_copied_to_another_registry(tmp_path: Path, registry: str) -> None:
    """Every platform is in the bundle under the locked digest, also after the tag was moved; a damaged part is found and repaired."""
    reference, out = f"{registry}/team/tool:1", tmp_path / "out"
    digest = push(tmp_path / "first", reference, "a tool")
    lock, _ = lock_image(reference, Lock(), tmp_path)
    push(tmp_path / "second", reference, "another tool")
    failed, whole = create(lock, out, images=True), bundle.check(lock, out)
    layer = max((out / "images" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    layer.write_bytes(b"something else")
    broken = bundle.check(lock, out)
    repaired, after = create(lock, out, images=False), bundle.check(lock, out)
    skopeo(
        "copy",
        "--all",
        "--preserve-digests",
        "--dest-tls-verify=false",
        f"oci:{out}/images:{reference}",
        f"docker://{registry}/copy/tool:1",
    )
    copied = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{registry}/copy/tool:1"))

    assert (failed, repaired) == ({}, {})
    assert (whole.missing, whole.damaged, whole.surplus) == ([], [], [])
    assert broken.damaged == [f"{layer.relative_to(out)} of {reference}"]
    assert (after.damaged, after.missing, after.surplus) == ([], [], [])
    assert copied["Digest"] == digest


def test_missing_image_is_a_failure_and_the_next_call_continues(tmp_path: Path, registry: str) -> None:
    """The failure names the image. A bundle without the option has no images, and is complete without them."""
    reference, out = f"{registry}/team/tool:1", tmp_path / "out"
    push(tmp_path / "first", reference, "a tool")
    lock, _ = lock_image(reference, Lock(), tmp_path)
    without, state = create(lock, tmp_path / "plain", images=False), bundle.check(lock, tmp_path / "plain")
    blobs = tmp_path / "registry" / "docker" / "registry" / "v2" / "blobs"
    largest = max(blobs.rglob("data"), key=lambda path: path.stat().st_size)
    largest.rename(tmp_path / "away")
    failed = create(lock, out, images=True)
    (tmp_path / "away").rename(largest)

    assert (without, state.complete) == ({}, True)
    assert list(failed) == [f"image {reference}"]
    assert create(lock, out, images=True) == {}
    assert bundle.check(lock, out).complete
