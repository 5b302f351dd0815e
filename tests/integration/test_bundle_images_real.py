"""Test images in a bundle with a real registry."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bundle import folder as bundle
from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Requirement, Unresolved
from primus_bootstrap.bundle.lock import make_lock
from primus_bootstrap.bundle.lock_file import lock_text, parse_lock
from primus_bootstrap.lab.machine import cache_dir
from tests.waiting import listens, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def registry_program() -> str:
    """Return the path of a registry: that of this machine, or from Debian's package, which is not installed; skip without both."""
    folder = cache_dir() / "tests" / "docker-registry-debian"
    if found := shutil.which("docker-registry"):
        return found
    if not (folder / "usr/bin/docker-registry").exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        work.mkdir(parents=True)
        script = "apt-get download docker-registry && dpkg -x *.deb ."
        done = subprocess.run(["sh", "-c", script], cwd=work, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            shutil.rmtree(work)
            pytest.skip(f"docker-registry is not installed, and its package cannot be downloaded: {done.stderr.strip()[-200:]}")
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    return str(folder / "usr/bin/docker-registry")


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
    with subprocess.Popen([registry_program(), "serve", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: listens("127.0.0.1", port))
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def send(method: str, url: str, content: bytes, kind: str = "application/octet-stream") -> str:
    """Send a request to the registry; return the address for the next one."""
    request = urllib.request.Request(url, content, {"Content-Type": kind}, method=method)  # noqa: S310 - http on loopback
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return str(answer.headers.get("Location") or "")


def put(repository: str, content: bytes, kind: str, **more: Any) -> dict[str, Any]:
    """Push a part of an image; return its descriptor. A manifest is pushed by its digest."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if kind in (MANIFEST, INDEX):
        send("PUT", f"{repository}/manifests/{digest}", content, kind)
    else:
        place = send("POST", f"{repository}/blobs/uploads/", b"")
        send("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", content)
    return {"mediaType": kind, "digest": digest, "size": len(content), **more}


def push(reference: str, text: str) -> str:
    """Push an image for two platforms; return the digest of its index."""
    server, _, path = reference.partition("/")
    repository, _, tag = path.partition(":")
    url, platforms = f"http://{server}/v2/{repository}", []
    for machine in ("amd64", "arm64"):
        layer = put(url, f"{text} for {machine}".encode() * 1000, LAYER)
        settings = {"architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
        config = put(url, json.dumps(settings).encode(), CONFIG)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}).encode()
        platforms.append(put(url, manifest, MANIFEST, platform={"architecture": machine, "os": "linux"}))
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms}).encode()
    send("PUT", f"{url}/manifests/{tag}", index, INDEX)
    return f"sha256:{hashlib.sha256(index).hexdigest()}"


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
    first = push(reference, "a tool")
    lock, unresolved = lock_image(reference, Lock(), tmp_path)
    again, _ = lock_image(reference, lock, tmp_path)
    second = push(reference, "another tool")
    kept, moved = lock_image(reference, parse_lock(lock_text(lock), "it"), tmp_path)
    accepted, _ = lock_image(reference, Lock(), tmp_path)

    assert unresolved == ()
    assert [item.url for item in lock.items] == [f"{reference}@{first}"]
    assert again == lock == kept
    assert [one.reason for one in moved] == [f"its tag points to {second} now, and the lock has {first}"]
    assert "bundle.lock.yaml" in moved[0].fix
    assert [item.url for item in accepted.items] == [f"{reference}@{second}"]


def test_images_are_carried_compared_and_repaired(tmp_path: Path, registry: str) -> None:
    """Every platform is in the bundle under the locked digest, also after the tag was moved; a damaged part is found and repaired."""
    reference, out = f"{registry}/team/tool:1", tmp_path / "out"
    push(reference, "a tool")
    lock, _ = lock_image(reference, Lock(), tmp_path)
    push(reference, "another tool")
    failed, whole = create(lock, out, images=True), bundle.check(lock, out)
    parts = list((out / "images" / "blobs" / "sha256").iterdir())
    layer = max(parts, key=lambda path: path.stat().st_size)
    layer.write_bytes(b"something else")
    broken = bundle.check(lock, out)
    repaired, after = create(lock, out, images=False), bundle.check(lock, out)

    assert (failed, repaired, len(parts)) == ({}, {}, 7)
    assert (whole.missing, whole.damaged, whole.surplus) == ([], [], [])
    assert broken.damaged == [f"{layer.relative_to(out)} of {reference}"]
    assert (after.damaged, after.missing, after.surplus) == ([], [], [])


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed (Debian: skopeo)")
def test_skopeo_copies_an_image_of_the_bundle_with_its_digest(tmp_path: Path, registry: str) -> None:
    """The command is that of docs/airgap.md."""
    reference, out = f"{registry}/team/tool:1", tmp_path / "out"
    digest = push(reference, "a tool")
    lock, _ = lock_image(reference, Lock(), tmp_path)
    create(lock, out, images=True)
    command = ["skopeo", "copy", "--all", "--preserve-digests", "--insecure-policy", "--dest-tls-verify=false"]
    copy = [f"oci:{out}/images:{reference}", f"docker://{registry}/copy/tool:1"]
    subprocess.run([*command, *copy], check=True, capture_output=True, timeout=120)
    copied, _ = lock_image(f"{registry}/copy/tool:1", Lock(), tmp_path)

    assert [item.url for item in copied.items] == [f"{registry}/copy/tool:1@{digest}"]


def test_missing_image_is_a_failure_and_the_next_call_continues(tmp_path: Path, registry: str) -> None:
    """The failure names the image. A bundle without the option has no images, and is complete without them."""
    reference, out = f"{registry}/team/tool:1", tmp_path / "out"
    push(reference, "a tool")
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
