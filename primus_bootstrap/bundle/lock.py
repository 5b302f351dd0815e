"""From needs to a lock: every version and sum, and what could not be found out. Asks package sources and indexes, no host."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.bundle import apt, registry, wheels
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Need, Unresolved
from primus_bootstrap.bundle.web import download, file_path, is_safe, sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from primus_bootstrap.bundle.artifacts import Needs, Target

    # Says what is wrong with a file that was fetched, or nothing: a proof of its own that it is the one that is pinned.
    Proof = Callable[[Path], str]


def make_lock(  # noqa: PLR0913 - four kinds of sources, each told apart
    needs: Needs,
    before: Lock,
    *,
    sources: Callable[[Target], apt.Sources],
    folder: Path,
    say: Callable[[str], None],
    proofs: Mapping[str, Proof] | None = None,
) -> tuple[Lock, tuple[Unresolved, ...]]:
    """Resolve all needs; what cannot be resolved now stays as it was locked before, and is named.

    Args:
        needs: What an apply fetches.
        before: The lock so far.
        sources: Where the packages of a kind of host come from.
        folder: Where apt keeps its lists.
        say: Told what is being done.
        proofs: What else than a sum proves a file, by its URL.
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
    wheel_sets: list[tuple[str, frozenset[str]]] = []
    for names in dict.fromkeys(frozenset(need.together) for need in needs.of("wheel") if need.together):
        say(f"wheels {', '.join(sorted(names))}: asking pip")
        together = wheels.resolve_together(names)
        if isinstance(together, Unresolved):
            unresolved.append(together)
            kept = [one for one in before.wheel_sets if names <= one[1]]
            wheel_sets += kept
            together = [item for item in before.items if item.kind == "wheel"] if kept else []
        else:
            wheel_sets.append((wheels.python_of(), names))
        items |= {("wheel", item.path): item for item in together}
    alone = [need for need in needs.of("wheel") if not need.together]
    for need in (*needs.of("file"), *alone, *needs.of("image")):
        say(f"{need.kind} {need.name}")
        one = _one(need, before, proofs or {})
        if isinstance(one, Unresolved):
            unresolved.append(one)
            one = before.find(need) or one
        if isinstance(one, Locked):
            items[need.kind, one.path or one.name] = one
    return Lock(tuple(items.values()), tuple(sets), tuple(wheel_sets)), tuple(unresolved)


def not_covered(needs: Needs, lock: Lock) -> tuple[str, ...]:
    """Return what an apply would fetch and the lock does not hold, in words; what could not be told is among it."""
    missing = [f"packages of {target}: {', '.join(sorted(names))}" for target, names in needs.sets if not lock.covers(target, names)]
    python = wheels.python_of()
    for names in dict.fromkeys(frozenset(need.together) for need in needs.of("wheel") if need.together):
        missing += [] if lock.covers_wheels(python, names) else [f"wheels {', '.join(sorted(names))} for {python}"]
    alone = [need for kind in ("file", "wheel", "image") for need in needs.of(kind) if not need.together]
    missing += [f"{need.kind} {need.name}" for need in alone if not lock.find(need)]
    return (*missing, *(f"what the role {one.role} fetches on {', '.join(one.hosts[:3])}: {one.reason}" for one in needs.unknown))


def _packages(
    target: Target, asked: list[frozenset[str]], sources: Callable[[Target], apt.Sources], folder: Path
) -> tuple[list[Locked], list[frozenset[str]], list[Unresolved]]:
    try:
        return apt.resolve(target, asked, sources(target), folder)
    except BundleError as error:
        return [], [], [Unresolved(f"the packages of {target}", error.what, error.fix)]


def _one(need: Need, before: Lock, proofs: Mapping[str, Proof]) -> Locked | Unresolved:
    match need.kind:
        case "wheel":
            return wheels.resolve(need)
        case "image":
            return _image(need)
        case _ if need.sha256:
            return _file(need, need.sha256, pinned=True)
        case _:
            # What was recorded once stays: a lock that followed upstream would be none.
            proof = proofs.get(need.name)
            known = before.find(need)
            return replace(known, pinned=proof is not None) if known else _recorded(need, proof)


def _file(need: Need, sha256: str, *, pinned: bool, size_bytes: int = 0) -> Locked:
    path = file_path(need.name, need.version)
    return Locked("file", need.name, need.version, url=need.name, sha256=sha256, size_bytes=size_bytes, path=path, pinned=pinned)


def _image(need: Need) -> Locked | Unresolved:
    """Return the digest that a reference means now; where a tag says which, it may mean another tomorrow."""
    try:
        found = registry.digest_of(need.name)
    except BundleError as error:
        return Unresolved(f"image {need.name}", error.what, error.fix)
    digest = f"sha256:{found}"
    return Locked("image", need.name, "", url=need.name, sha256=found, size_bytes=0, path="", pinned=need.name.endswith(f"@{digest}"))


def _recorded(need: Need, proof: Proof | None) -> Locked | Unresolved:
    """Return a file of which no role states a sum with the one that it has now, and whether something else proves it."""
    fix = "set the role's variable for the sum; upstream publishes it with the file"
    if not is_safe(need.name):
        return Unresolved(need.name, "no SHA-256 is stated for it, and its server proves nothing: it has no TLS", fix)
    if need.name.startswith("oci://"):
        try:
            sha256, size_bytes = registry.chart_layer(need.name, need.version)
        except BundleError as error:
            return Unresolved(need.name, error.what, error.fix)
        return _file(need, sha256, pinned=False, size_bytes=size_bytes)
    with tempfile.TemporaryDirectory(prefix="primus-bundle-") as folder:
        part = Path(folder, "file")
        if why := download(need.name, part):
            return Unresolved(need.name, why, f"see that this machine reaches it, or {fix}")
        if proof and (wrong := proof(part)):
            return Unresolved(need.name, wrong, "find out why before anything of it runs; a mirror must hold it as it was released")
        return _file(need, sum_of(part), pinned=proof is not None, size_bytes=part.stat().st_size)
