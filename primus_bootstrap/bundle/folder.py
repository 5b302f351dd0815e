"""Create the folder of a bundle from a lock, and check every file in it against the lock."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.bundle import apt, image_layout, registry, wheels
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Target
from primus_bootstrap.bundle.index import packages_text, release_text
from primus_bootstrap.bundle.lock_file import NAME, lock_text
from primus_bootstrap.bundle.web import download, sha256_of
from primus_bootstrap.core.atomic_files import write_if_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH = 20
# The suffix of an incomplete file, which the next run removes.
PART = ".part"
# Marks a folder as an incomplete bundle: the lock file is written last.
_BEGUN = f"bundle{PART}"


@dataclass(slots=True)
class State:
    """The difference between a bundle and its lock: paths in the bundle, and the number of correct files in `whole`."""

    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    whole: int = 0

    @property
    def complete(self) -> bool:
        """Whether every file of the lock is present and correct. Additional files are allowed."""
        return not self.missing and not self.damaged


def check(lock: Lock, folder: Path) -> State:
    """Compare a bundle with a lock, file by file."""
    state = State()
    for item in lock.files:
        _add(state, item.path, sha256_of(folder / item.path) == item.sha256 if (folder / item.path).is_file() else None)
    for path, text in _generated(lock, folder, state):
        content = (folder / path).read_bytes() if (folder / path).is_file() else None
        _add(state, path, None if content is None else content == text.encode())
    expected = {*(item.path for item in lock.files), *_generated_names(lock)}
    if image_layout.exists(folder):
        _check_images(lock, folder, state)
        expected |= image_layout.names(lock.images, folder)
    present = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()) if folder.is_dir() else []
    state.surplus = [name for name in present if name not in expected]
    return state


def create(  # noqa: PLR0913 - all needed
    lock: Lock,
    folder: Path,
    *,
    sources: Callable[[Target], apt.Sources],
    cache: Path,
    progress: Callable[[str], None],
    images: bool = False,
) -> dict[str, str]:
    """Download the missing files of a bundle, then write its indexes; return the failures by path.

    After an interruption, the next call continues: a file gets its name after its checksum was verified.

    Args:
        lock: What the bundle contains.
        folder: The folder of the bundle.
        sources: Returns the package sources of a target.
        cache: apt's folder.
        progress: Receives one line per step.
        images: Whether to download the images as well, or to complete those of an earlier call.

    Raises:
        BundleError: The folder cannot be written, or it contains other files.
    """
    _prepare(folder)
    missing = [item for item in lock.files if not _is_complete(item, folder)]
    progress(f"{len(lock.files) - len(missing)} of {len(lock.files)} files are complete, {len(missing)} to download")
    failed: dict[str, str] = {}
    for batch in _batches(missing):
        parts = [(item, _part(folder, item)) for item in batch]
        failed |= _fetch(parts, sources, cache)
        for item, part in parts:
            if item.path not in failed and (why := _accept(item, part, folder / item.path)):
                failed[item.path] = why
            part.unlink(missing_ok=True)
        done = len([item for item in missing if (folder / item.path).is_file()])
        progress(f"{done} of {len(missing)} downloaded")
    if images or image_layout.exists(folder):
        failed |= image_layout.fetch(lock.images, folder, progress)
    if not failed:
        for path, text in _generated(lock, folder, State()):
            write_if_changed(folder / path, text, mode=0o644)
        (folder / _BEGUN).unlink()
    return failed


def _check_images(lock: Lock, folder: Path, state: State) -> None:
    found = list(image_layout.faults(lock.images, folder))
    state.missing += [f"{path} of {item.name}" for item, path, fault in found if fault == "missing"]
    state.damaged += [f"{path} of {item.name}" for item, path, fault in found if fault == "damaged"]
    state.whole += len(lock.images) - len({item.name for item, _, _ in found})


def _prepare(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).is_file() for name in (NAME, _BEGUN)):
        raise BundleError(f"{folder} is not empty and not a bundle", fix="use an empty folder: --out DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.rglob(f"*{PART}"):
            part.unlink()
        (folder / _BEGUN).touch()
    except OSError as error:
        raise BundleError(f"{error.filename}: {error.strerror}", fix="choose a folder that you can write with --out DIR") from error


def _is_complete(item: Locked, folder: Path) -> bool:
    path = folder / item.path
    return path.is_file() and sha256_of(path) == item.sha256


def _part(folder: Path, item: Locked) -> Path:
    target = folder / item.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{PART}")
    part.unlink(missing_ok=True)
    return part


def _accept(item: Locked, part: Path, target: Path) -> str:
    """Rename a download to its target if its checksum is correct; return the problem otherwise."""
    if not part.is_file():
        return "nothing was downloaded"
    if (found := sha256_of(part)) != item.sha256:
        return f"the file at {item.url} has the sha256 {found}, the lock has {item.sha256}"
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.chmod(0o644)
    part.replace(target)
    return ""


def _batches(items: list[Locked]) -> Iterator[list[Locked]]:
    """Yield the packages of each target in batches, and all other items one by one."""
    targets = dict.fromkeys(item.target for item in items if item.kind == "package")
    for target in targets:
        packages = [item for item in items if item.kind == "package" and item.target == target]
        yield from (packages[start : start + _BATCH] for start in range(0, len(packages), _BATCH))
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


def _add(state: State, path: str, correct: bool | None) -> None:  # noqa: FBT001 - None means missing
    if correct is None:
        state.missing.append(path)
    elif correct:
        state.whole += 1
    else:
        state.damaged.append(path)


def _targets(lock: Lock) -> list[Target]:
    return sorted({item.target for item in lock.items if item.target})


def _generated_names(lock: Lock) -> list[str]:
    names = [f"apt/{target}/{name}" for target in _targets(lock) for name in ("Packages", "Release")]
    wheel = ["wheels/index.html"] if any(item.kind == "wheel" for item in lock.items) else []
    return [*names, *wheel, NAME]


def _generated(lock: Lock, folder: Path, state: State) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each generated file, the lock file last. An index needs all its packages and is otherwise skipped."""
    bad = {*state.missing, *state.damaged}
    for target in _targets(lock):
        items = [item for item in lock.items if item.target == target]
        if bad.isdisjoint(item.path for item in items):
            packages = packages_text(items, folder)
            yield f"apt/{target}/Packages", packages
            yield f"apt/{target}/Release", release_text(target, packages)
    if names := [Path(item.path).name for item in lock.items if item.kind == "wheel"]:
        yield "wheels/index.html", wheels.index_text(names)
    yield NAME, lock_text(lock)
