"""A bundle on disk: made from a lock, resumed where it was interrupted, and checked; no file in it is believed without its sum."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.bundle import apt, registry, wheels
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Target
from primus_bootstrap.bundle.index import packages_text, release_text
from primus_bootstrap.bundle.lock_file import NAME, lock_text
from primus_bootstrap.bundle.web import download, sum_of
from primus_bootstrap.core.atomic_files import write_if_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AT_ONCE = 20
# Half a file; the next run removes it.
PART = ".part"
# By it a folder is known as a bundle from the first moment on; the lock itself is written last.
_BEGUN = f"bundle{PART}"


@dataclass(slots=True)
class State:
    """How a bundle compares with its lock; every name is a path in the bundle, `whole` a number of files."""

    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    whole: int = 0

    @property
    def good(self) -> bool:
        """Whether every file is there as the lock says; what is there beside it does no harm."""
        return not self.missing and not self.damaged


def check(lock: Lock, folder: Path) -> State:
    """Compare a bundle with a lock, file by file."""
    state = State()
    for item in lock.files:
        _judge(state, item.path, sum_of(folder / item.path) == item.sha256 if (folder / item.path).is_file() else None)
    for path, text in _written(lock, folder, state):
        found = (folder / path).read_bytes() if (folder / path).is_file() else None
        _judge(state, path, None if found is None else found == text.encode())
    known = {*(item.path for item in lock.files), *_written_names(lock)}
    there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()) if folder.is_dir() else []
    state.surplus = [name for name in there if name not in known]
    return state


def create(
    lock: Lock, folder: Path, *, sources: Callable[[Target], apt.Sources], cache: Path, say: Callable[[str], None]
) -> dict[str, str]:
    """Download what a bundle lacks, then write its indexes; return what failed, by path.

    Interrupted, it goes on where it was: a file bears its name only once its sum was compared.

    Raises:
        BundleError: the folder cannot be written, or holds something else.
    """
    _prepare(folder)
    due = [item for item in lock.files if not _is_whole(item, folder)]
    say(f"{len(lock.files) - len(due)} of {len(lock.files)} files are there, {len(due)} to download")
    failed: dict[str, str] = {}
    for batch in _batches(due):
        parts = [(item, _part(folder, item)) for item in batch]
        failed |= _fetch(parts, sources, cache)
        for item, part in parts:
            if item.path not in failed and (why := _take_up(item, part, folder / item.path)):
                failed[item.path] = why
            part.unlink(missing_ok=True)
        done = len([item for item in due if (folder / item.path).is_file()])
        say(f"{done} of {len(due)} downloaded")
    if not failed:
        for path, text in _written(lock, folder, State()):
            write_if_changed(folder / path, text, mode=0o644)
        (folder / _BEGUN).unlink()
    return failed


def _prepare(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).is_file() for name in (NAME, _BEGUN)):
        raise BundleError(f"{folder} holds something else than a bundle", fix="name a folder of its own: --out DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.rglob(f"*{PART}"):
            part.unlink()
        (folder / _BEGUN).touch()
    except OSError as error:
        raise BundleError(f"{error.filename}: {error.strerror}", fix="choose a folder of yours with --out") from error


def _is_whole(item: Locked, folder: Path) -> bool:
    path = folder / item.path
    return path.is_file() and sum_of(path) == item.sha256


def _part(folder: Path, item: Locked) -> Path:
    target = folder / item.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{PART}")
    part.unlink(missing_ok=True)
    return part


def _take_up(item: Locked, part: Path, target: Path) -> str:
    """Give a download its name where its sum is right; return what is wrong otherwise."""
    if not part.is_file():
        return "nothing was downloaded"
    if (found := sum_of(part)) != item.sha256:
        return f"the file at {item.url} has the sum {found}, the lock says {item.sha256}"
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.chmod(0o644)
    part.replace(target)
    return ""


def _batches(items: list[Locked]) -> Iterator[list[Locked]]:
    """Yield packages of one target some at a time, everything else one by one."""
    targets = dict.fromkeys(item.target for item in items if item.kind == "package")
    for target in targets:
        mine = [item for item in items if item.kind == "package" and item.target == target]
        yield from (mine[start : start + _AT_ONCE] for start in range(0, len(mine), _AT_ONCE))
    yield from ([item] for item in items if item.kind != "package")


def _fetch(parts: list[tuple[Locked, Path]], sources: Callable[[Target], apt.Sources], cache: Path) -> dict[str, str]:
    item, part = parts[0]
    match item.kind:
        case "package" if item.target:
            return apt.fetch(parts, sources(item.target), cache)
        case "wheel":
            why = wheels.fetch(item, part)
        case _:
            oci = item.url.startswith("oci://")
            why = registry.fetch_chart(item.url, item.version, item.sha256, part) if oci else download(item.url, part)
    return {item.path: why} if why else {}


def _judge(state: State, path: str, right: bool | None) -> None:  # noqa: FBT001 - None is the third answer: not there
    if right is None:
        state.missing.append(path)
    elif right:
        state.whole += 1
    else:
        state.damaged.append(path)


def _targets(lock: Lock) -> list[Target]:
    return sorted({item.target for item in lock.items if item.target})


def _written_names(lock: Lock) -> list[str]:
    names = [f"apt/{target}/{name}" for target in _targets(lock) for name in ("Packages", "Release")]
    wheel = ["wheels/index.html"] if any(item.kind == "wheel" for item in lock.items) else []
    return [*names, *wheel, NAME]


def _written(lock: Lock, folder: Path, state: State) -> Iterator[tuple[str, str]]:
    """Yield what `create` writes itself, the lock last; an index of packages that are not all right cannot be told, and is left out."""
    bad = {*state.missing, *state.damaged}
    for target in _targets(lock):
        mine = [item for item in lock.items if item.target == target]
        if bad.isdisjoint(item.path for item in mine):
            packages = packages_text(mine, folder)
            yield f"apt/{target}/Packages", packages
            yield f"apt/{target}/Release", release_text(target, packages)
    if found := [Path(item.path).name for item in lock.items if item.kind == "wheel"]:
        yield "wheels/index.html", wheels.index_text(found)
    yield NAME, lock_text(lock)
