"""From needs to a lock: every version and sum, and what could not be found out. Asks package sources and indexes, no host."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from primus_bootstrap.bundle import apt, wheels
from primus_bootstrap.bundle.values import BundleError, Lock, Locked, Need, Unresolved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from primus_bootstrap.bundle.values import Needs, Target


def make_lock(
    needs: Needs, before: Lock, *, sources: Callable[[Target], apt.Sources], folder: Path, say: Callable[[str], None]
) -> tuple[Lock, tuple[Unresolved, ...]]:
    """Resolve all needs; what cannot be resolved now stays as it was locked before, and is named.

    Args:
        needs: What an apply fetches.
        before: The lock so far.
        sources: Where the packages of a kind of host come from.
        folder: Where apt keeps its lists.
        say: Told what is being done.
    """
    unresolved = [
        Unresolved(f"what the role {one.role} fetches on {', '.join(one.hosts[:3])}", one.reason, one.fix) for one in needs.unknown
    ]
    items: dict[tuple[str, str], Locked] = {}
    sets: list[tuple[Target, frozenset[str]]] = []
    for target in dict.fromkeys(target for target, _ in needs.sets):
        asked = [names for known, names in needs.sets if known == target]
        say(f"packages of {target}: asking apt")
        found, covered, failed = _packages(target, asked, sources, folder)
        if failed:
            found = [item for item in before.items if item.target == target] + found
            covered += [names for known, names in before.sets if known == target and names not in covered]
        items |= {("package", item.path): item for item in found}
        sets += [(target, names) for names in covered]
        unresolved += failed
    for need in (*needs.of("file"), *needs.of("wheel"), *needs.of("image")):
        say(f"{need.kind} {need.name}")
        one = _one(need)
        if isinstance(one, Unresolved):
            unresolved.append(one)
            one = before.find(need) or one
        if isinstance(one, Locked):
            items[need.kind, one.path] = one
    return Lock(tuple(items.values()), tuple(sets)), tuple(unresolved)


def not_covered(needs: Needs, lock: Lock) -> tuple[str, ...]:
    """Return what an apply would fetch and the lock does not hold, in words; what could not be told is among it."""
    missing = [f"packages of {target}: {', '.join(sorted(names))}" for target, names in needs.sets if not lock.covers(target, names)]
    missing += [f"{need.kind} {need.name}" for kind in ("file", "wheel", "image") for need in needs.of(kind) if not lock.find(need)]
    return (*missing, *(f"what the role {one.role} fetches on {', '.join(one.hosts[:3])}: {one.reason}" for one in needs.unknown))


def file_path(url: str) -> str:
    """Return where a file lies in a bundle: under the name of its server, with its path as it is there."""
    parts = urlsplit(url)
    return f"files/{parts.hostname or 'local'}/{unquote(parts.path).lstrip('/')}"


def _packages(
    target: Target, asked: list[frozenset[str]], sources: Callable[[Target], apt.Sources], folder: Path
) -> tuple[list[Locked], list[frozenset[str]], list[Unresolved]]:
    try:
        return apt.resolve(target, asked, sources(target), folder)
    except BundleError as error:
        return [], [], [Unresolved(f"the packages of {target}", error.what, error.fix)]


def _one(need: Need) -> Locked | Unresolved:
    if need.kind == "wheel":
        return wheels.resolve(need)
    if need.kind == "image":
        fix = "copy it to a registry that the hosts reach, and name that one in hosts.yaml"
        return Unresolved(need.name, "images of containers are listed and cannot be locked yet", fix)
    if not need.sha256:
        return Unresolved(
            need.name, "no SHA-256 is stated for it", "set the role's variable for the sum; upstream publishes it with the file"
        )
    return Locked("file", need.name, need.version, url=need.name, sha256=need.sha256, size_bytes=0, path=file_path(need.name))
