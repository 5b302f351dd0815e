"""Resolve the needs of an apply to a lock: find every version and checksum in package sources, indexes and registries."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.bundle import apt, registry, wheels
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Need, Unresolved
from primus_bootstrap.bundle.web import download, file_path, is_safe, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from primus_bootstrap.bundle.artifacts import Needs, Target

    # Checks the content of a downloaded file; returns the problem, or an empty string.
    Proof = Callable[[Path], str]

_MOVED_TAG = "find out why it was moved; to use the new image, delete its entry in bundle.lock.yaml and run `primus-bootstrap bundle lock`"


def make_lock(  # noqa: PLR0913 - all needed
    needs: Needs,
    before: Lock,
    *,
    sources: Callable[[Target], apt.Sources],
    folder: Path,
    progress: Callable[[str], None],
    proofs: Mapping[str, Proof] | None = None,
) -> tuple[Lock, tuple[Unresolved, ...]]:
    """Resolve all needs; return the lock and the unresolved needs. Unresolved needs keep their entries of the earlier lock.

    Args:
        before: The earlier lock.
        sources: Returns the package sources of a target.
        progress: Receives one line per step.
        proofs: Checks of files without a checksum, by URL.
    """
    unresolved = [Unresolved(_unknown_text(one.role, one.hosts), one.reason, one.fix) for one in needs.unknown]
    items: dict[tuple[str, str], Locked] = {}
    sets: list[tuple[Target, frozenset[str]]] = []
    for target in dict.fromkeys(target for target, _ in needs.sets):
        requested = [names for other, names in needs.sets if other == target]
        progress(f"packages of {target}: resolving with apt")
        found, resolved, failed = _packages(target, requested, sources, folder)
        if failed:
            found = [item for item in before.items if item.target == target] + found
            resolved += [names for other, names in before.sets if other == target and names not in resolved]
        items |= {("package", item.path): item for item in found}
        sets += [(target, names) for names in resolved]
        unresolved += failed
    found_wheels, wheel_sets, failed_wheels = _wheels_together(needs, before, progress)
    items |= {("wheel", item.path): item for item in found_wheels}
    unresolved += failed_wheels
    alone = [need for need in needs.of("wheel") if not need.together]
    for need in (*needs.of("file"), *alone, *needs.of("image")):
        progress(f"{need.kind} {need.name}")
        item = _resolve(need, before, proofs or {})
        if isinstance(item, Unresolved):
            unresolved.append(item)
            item = before.find(need) or item
        if isinstance(item, Locked):
            items[need.kind, item.path or item.name] = item
    return Lock(tuple(items.values()), tuple(sets), tuple(wheel_sets)), tuple(unresolved)


def _wheels_together(
    needs: Needs, before: Lock, progress: Callable[[str], None]
) -> tuple[list[Locked], list[tuple[str, frozenset[str]]], list[Unresolved]]:
    """Resolve the wheels that are installed together; return their files, the resolved sets, and the unresolved ones."""
    items: list[Locked] = []
    resolved: list[tuple[str, frozenset[str]]] = []
    unresolved: list[Unresolved] = []
    for names in dict.fromkeys(frozenset(need.together) for need in needs.of("wheel") if need.together):
        progress(f"wheels {', '.join(sorted(names))}: resolving with pip")
        found = wheels.resolve_together(names)
        if isinstance(found, Unresolved):
            unresolved.append(found)
            kept = [wheel_set for wheel_set in before.wheel_sets if names <= wheel_set[1]]
            resolved += kept
            items += [item for item in before.items if item.kind == "wheel"] if kept else []
        else:
            resolved.append((wheels.python_tag(), names))
            items += found
    return items, resolved, unresolved


def missing_from_lock(needs: Needs, lock: Lock) -> tuple[str, ...]:
    """Return one line for each download of an apply that the lock does not contain, including unknown ones."""
    missing = [f"packages of {target}: {', '.join(sorted(names))}" for target, names in needs.sets if not lock.covers(target, names)]
    python = wheels.python_tag()
    for names in dict.fromkeys(frozenset(need.together) for need in needs.of("wheel") if need.together):
        missing += [] if lock.covers_wheels(python, names) else [f"wheels {', '.join(sorted(names))} for {python}"]
    alone = [need for kind in ("file", "wheel", "image") for need in needs.of(kind) if not need.together]
    missing += [f"{need.kind} {need.name}" for need in alone if not lock.find(need)]
    return (*missing, *(f"{_unknown_text(one.role, one.hosts)}: {one.reason}" for one in needs.unknown))


def _unknown_text(role: str, hosts: tuple[str, ...]) -> str:
    return f"the downloads of the role {role} on {', '.join(hosts[:3])}"


def _packages(
    target: Target, requested: list[frozenset[str]], sources: Callable[[Target], apt.Sources], folder: Path
) -> tuple[list[Locked], list[frozenset[str]], list[Unresolved]]:
    try:
        return apt.resolve(target, requested, sources(target), folder)
    except BundleError as error:
        return [], [], [Unresolved(f"the packages of {target}", error.what, error.fix)]


def _resolve(need: Need, before: Lock, proofs: Mapping[str, Proof]) -> Locked | Unresolved:
    match need.kind:
        case "wheel":
            return wheels.resolve(need)
        case "image":
            return _image(need, before)
        case _ if need.sha256:
            return _file(need, need.sha256, pinned=True)
        case _:
            # A recorded checksum stays, even if upstream changes the file.
            proof = proofs.get(need.name)
            locked = before.find(need)
            return replace(locked, pinned=proof is not None) if locked else _recorded(need, proof)


def _file(need: Need, sha256: str, *, pinned: bool, size_bytes: int = 0) -> Locked:
    path = file_path(need.name, need.version)
    return Locked("file", need.name, need.version, url=need.name, sha256=sha256, size_bytes=size_bytes, path=path, pinned=pinned)


def _image(need: Need, before: Lock) -> Locked | Unresolved:
    """Return the image as NAME:TAG@DIGEST. A tag that points to another image than in the earlier lock is unresolved."""
    try:
        found = registry.digest_of(need.name)
    except BundleError as error:
        return Unresolved(f"image {need.name}", error.what, error.fix)
    pinned = need.name.endswith(f"@sha256:{found}")
    locked = before.find(need)
    if locked and locked.sha256 != found:
        why = f"its tag points to sha256:{found} now, and the lock has sha256:{locked.sha256}"
        return Unresolved(f"image {need.name}", why, _MOVED_TAG)
    url = need.name if pinned else f"{need.name}@sha256:{found}"
    return Locked("image", need.name, "", url=url, sha256=found, size_bytes=0, path="", pinned=pinned)


def _recorded(need: Need, proof: Proof | None) -> Locked | Unresolved:
    """Return a file without a pinned checksum with its current checksum; the proof, if there is one, checks its content."""
    fix = "set the role's variable for the checksum, which upstream publishes with the file"
    if not is_safe(need.name):
        return Unresolved(need.name, "no role has its checksum, and its server has no TLS", fix)
    if need.name.startswith("oci://"):
        try:
            sha256, size_bytes = registry.chart_layer(need.name, need.version)
        except BundleError as error:
            return Unresolved(need.name, error.what, error.fix)
        return _file(need, sha256, pinned=False, size_bytes=size_bytes)
    with tempfile.TemporaryDirectory(prefix="primus-bundle-") as folder:
        part = Path(folder, "file")
        if why := download(need.name, part):
            return Unresolved(need.name, why, f"check that this machine can access the address, or {fix}")
        if proof and (problem := proof(part)):
            return Unresolved(need.name, problem, "find out why it differs before you use it; a mirror must have the original file")
        return _file(need, sha256_of(part), pinned=proof is not None, size_bytes=part.stat().st_size)
