"""Compare the images of running containers with the digests of a lock file. Pure functions."""  # noqa: INP001 - Ansible loads it by path

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def full_name(reference: str) -> str:
    """Return a reference with server and tag and without digest, as container engines complete it."""
    name = reference.partition("@")[0]
    first, slash, _ = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def running_images(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield pod, image and digest of every container whose runtime reports the digest of the image that it pulled."""
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        images = {one["name"]: one.get("image", "") for field in ("containers", "initContainers") for one in spec.get(field) or ()}
        for one in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
            digest = str(one.get("imageID") or "").partition("@")[2]
            if digest and images.get(one["name"]):
                yield pod["metadata"]["name"], images[one["name"]], digest


def compare_images(pods: Iterable[Mapping[str, Any]], locked: Mapping[str, str]) -> tuple[int, list[str]]:
    """Return how many containers have an image of the lock, and one sentence for each that runs another one.

    Args:
        pods: The pods of a namespace.
        locked: SHA-256 digests by reference.
    """
    digests = {full_name(name): f"sha256:{digest}" for name, digest in locked.items()}
    compared = [(pod, image, digest) for pod, image, digest in running_images(pods) if full_name(image) in digests]
    wrong = [(pod, image, digest) for pod, image, digest in compared if digests[full_name(image)] != digest]
    return len(compared), [f"{pod} runs {image} with {digest}, the lock has {digests[full_name(image)]}" for pod, image, digest in wrong]
