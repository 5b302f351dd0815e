"""Manage the folder of checkpoints: names, manifests with checksums, `latest`, and removal of old checkpoints.

checkpoints/
  step-00000020/            complete: the manifest is written last, then the folder is renamed
    __0_0.distcp …          one or more files per rank, by torch.distributed.checkpoint
    .metadata
    manifest.json           step, facts of the run, SHA-256 of every file
  step-00000030.partial/    being written, or left over from a crash
  step-00000010.corrupt/    a checksum was wrong at resume; kept for inspection
  step-00000005.….removed/  being removed, or left over because a file could not be removed
  latest                    the name of the newest complete checkpoint
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.common.errors import StorageError
from workloads.common.files import replace_text, sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
_LATEST, _MANIFEST = "latest", "manifest.json"
_PARTIAL, _CORRUPT, _REMOVED = ".partial", ".corrupt", ".removed"
_NAME = re.compile(r"step-\d{8,}")
_BLOCK_BYTES = 4 * 2**20


class DamagedError(StorageError):
    """A checkpoint is readable, but its content differs from what was written."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a complete checkpoint. `files` maps names to SHA-256 sums; `facts` describes the run."""

    step: int
    files: Mapping[str, str]
    facts: Mapping[str, Any]


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:08d}"


def partial_folder(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint while it is written."""
    return step_folder(folder, step).with_suffix(_PARTIAL)


def begin(folder: Path, step: int) -> None:
    """Create an empty folder for a checkpoint; remove leftovers of a crash."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(f"step-*{_PARTIAL}"), *folder.glob(f"step-*{_REMOVED}")):
        _remove(leftover)
    partial_folder(folder, step).mkdir()


def commit(folder: Path, manifest: Manifest, *, keep: int) -> str:
    """Make a written checkpoint the latest one, and remove the oldest ones beyond `keep`.

    Returns:
        The first failed removal, or an empty string. A reader of an old checkpoint must not fail the new one.
    """
    partial, final = partial_folder(folder, manifest.step), step_folder(folder, manifest.step)
    text = json.dumps({"format": FORMAT, "step": manifest.step, "facts": manifest.facts, "files": manifest.files}, indent=1)
    replace_text(partial / _MANIFEST, text + "\n")
    replaced = _removed(final) if final.exists() else None  # from before the run was resumed at an earlier step
    if replaced:
        final.rename(replaced)
    partial.rename(final)
    sync_folder(folder)
    replace_text(folder / _LATEST, final.name + "\n")
    beyond = complete_checkpoints(folder)[keep:]
    return next(filter(None, [_remove(path) for path in (*([replaced] if replaced else []), *beyond)]), "")


def _removed(path: Path) -> Path:
    return path.with_name(f"{path.stem}.{time.time_ns()}{_REMOVED}")


def _remove(path: Path) -> str:
    """Remove a folder; return the problem, or an empty string. Rename it first, so that a partial removal leaves no checkpoint.

    On NFS, a file that another client has open, and its folder, cannot be removed.
    """
    try:
        target = path if path.suffix == _REMOVED else path.rename(_removed(path))
        shutil.rmtree(target)
    except OSError as error:
        return f"{path.name} could not be removed: {error}"
    return ""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the usable checkpoints: the one named in `latest`, then older ones, newest first.

    Checkpoints with a higher step than `latest` are from before the run was resumed at an earlier step. Without a valid `latest`, all
    complete checkpoints are usable.

    Raises:
        OSError: The folder exists and cannot be read.
    """
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return []
    found = sorted((path for path in entries if _NAME.fullmatch(path.name) and (path / _MANIFEST).is_file()), reverse=True)
    try:
        latest = (folder / _LATEST).read_text("utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return found
    return [path for path in found if path.name <= latest] if _NAME.fullmatch(latest) else found


def unusable(folder: Path) -> list[str]:
    """Return the names of checkpoints that are not usable: damaged, or newer than `latest`."""
    usable = {path.name for path in complete_checkpoints(folder)}
    names = sorted(path.name for path in folder.glob("step-*"))
    return [name for name in names if name.endswith(_CORRUPT) or (_NAME.fullmatch(name) and name not in usable)]


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        DamagedError: It is not a manifest.
        StorageError: It cannot be read, or has another format.
    """
    fix = "give the path of a complete checkpoint, step-NNNNNNNN"
    try:
        content = json.loads((path / _MANIFEST).read_text("utf-8"))
        if content["format"] != FORMAT:
            raise StorageError(
                f"{path}: format {content['format']}; this program reads format {FORMAT}",
                fix="use the version of the program that wrote it",
            )
        return Manifest(content["step"], content["files"], content["facts"])
    except OSError as error:
        raise StorageError(f"{path / _MANIFEST}: {error.strerror}", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path / _MANIFEST}: cannot be read: {error}", fix=fix) from error


def newest_setting(folder: Path, section: str, name: str) -> object:
    """Return a setting of the run that wrote the newest checkpoint with a valid manifest, or None."""
    for path in complete_checkpoints(folder):
        try:
            return read_manifest(path).facts["settings"][section][name]
        except DamagedError:
            continue
    return None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def damage(path: Path, manifest: Manifest, *, part: int, parts: int) -> str:
    """Compare this part of a checkpoint's files with the manifest; return the first difference, or an empty string."""
    for name in sorted(manifest.files)[part::parts]:
        if not (path / name).is_file():
            return f"{name} is missing"
        if checksum(path / name) != manifest.files[name]:
            return f"{name} does not have the checksum of the manifest"
    return ""


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it is not used again."""
    target = path.with_suffix(_CORRUPT)
    if target.exists():
        shutil.rmtree(target)
    path.rename(target)
    return target


def remove_partial(folder: Path, step: int) -> None:
    """Remove the files of a failed checkpoint."""
    _remove(partial_folder(folder, step))
