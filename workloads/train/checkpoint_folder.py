"""The folder of checkpoints: names, manifests with checksums, `latest`, what is kept. Touches files only; knows nothing of models.

checkpoints/
  step-00000020/            complete: its manifest was written last, then the folder got this name
    __0_0.distcp …          a file or more a rank, by torch.distributed.checkpoint
    .metadata
    manifest.json           step, facts of the run, SHA-256 of every file
  step-00000030.partial/    being written, or left by a crash
  step-00000010.corrupt/    a checksum was wrong when it was to be used; kept for inspection
  step-00000005.….removed/  being removed, or left because a file in it could not be removed
  latest                    the name of the newest complete one
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
    """A checkpoint could be read, and is not what was written."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint holds. `files` maps a name to its SHA-256; `facts` are of the run that wrote it."""

    step: int
    files: Mapping[str, str]
    facts: Mapping[str, Any]


def step_folder(folder: Path, step: int) -> Path:
    """Return where a step's checkpoint is, or will be."""
    return folder / f"step-{step:08d}"


def partial_folder(folder: Path, step: int) -> Path:
    """Return where a step's checkpoint is while it is written."""
    return step_folder(folder, step).with_suffix(_PARTIAL)


def begin(folder: Path, step: int) -> None:
    """Make an empty folder to write into; what a crash left unfinished is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in (*folder.glob(f"step-*{_PARTIAL}"), *folder.glob(f"step-*{_REMOVED}")):
        _remove(left)
    partial_folder(folder, step).mkdir()


def commit(folder: Path, manifest: Manifest, *, keep: int) -> str:
    """Make a written checkpoint the latest one, and remove those beyond `keep`.

    Returns:
        What could not be removed, or an empty string: somebody who still reads an old checkpoint does not spoil the new one.
    """
    partial, final = partial_folder(folder, manifest.step), step_folder(folder, manifest.step)
    text = json.dumps({"format": FORMAT, "step": manifest.step, "facts": manifest.facts, "files": manifest.files}, indent=1)
    replace_text(partial / _MANIFEST, text + "\n")
    replaced = _removed(final) if final.exists() else None  # of a branch that was left when the run was resumed from before it
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
    """Remove a folder, under another name first, so that half of it is no checkpoint; return why something of it is left.

    NFS keeps a file that a process of another client has open, and the folder with it.
    """
    try:
        target = path if path.suffix == _REMOVED else path.rename(_removed(path))
        shutil.rmtree(target)
    except OSError as error:
        return f"{path.name} could not be removed: {error}"
    return ""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that may be used: the one named by `latest`, then older ones, newest first.

    Checkpoints newer than `latest` belong to a branch that was left, also after the one that it names was set aside. Where `latest` names
    none, the step decides.

    Raises:
        OSError: where the folder cannot be read; that is not the same as a folder that is not there.
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
    """Return the names of what was a checkpoint and may not be used: damaged, or of a branch that was left."""
    usable = {path.name for path in complete_checkpoints(folder)}
    names = sorted(path.name for path in folder.glob("step-*"))
    return [name for name in names if name.endswith(_CORRUPT) or (_NAME.fullmatch(name) and name not in usable)]


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        DamagedError: where it is no manifest.
        StorageError: where it cannot be read, or is of another format.
    """
    fix = "name a complete checkpoint folder, step-NNNNNNNN"
    try:
        content = json.loads((path / _MANIFEST).read_text("utf-8"))
        if content["format"] != FORMAT:
            raise StorageError(
                f"{path}: format {content['format']}; this program reads format {FORMAT}", fix="use the program that wrote it"
            )
        return Manifest(content["step"], content["files"], content["facts"])
    except OSError as error:
        raise StorageError(f"{path / _MANIFEST}: {error.strerror}", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path / _MANIFEST}: cannot be read: {error}", fix=fix) from error


def newest_setting(folder: Path, section: str, name: str) -> object:
    """Return a setting of the run that wrote the newest checkpoint whose manifest is one; None where there is none."""
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
    """Compare this part's share of a checkpoint's files with the manifest; return what differs first, or an empty string."""
    for name in sorted(manifest.files)[part::parts]:
        if not (path / name).is_file():
            return f"{name} is missing"
        if checksum(path / name) != manifest.files[name]:
            return f"{name} does not have the checksum of the manifest"
    return ""


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it is neither used nor counted again."""
    target = path.with_suffix(_CORRUPT)
    if target.exists():
        shutil.rmtree(target)
    path.rename(target)
    return target


def remove_partial(folder: Path, step: int) -> None:
    """Free what a failed checkpoint took."""
    _remove(partial_folder(folder, step))
