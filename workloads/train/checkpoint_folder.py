"""The folder of checkpoints: names, manifests with checksums, `latest`, what is kept. Touches files only; knows nothing of models.

checkpoints/
  step-00000020/            complete: its manifest was written last, then the folder got this name
    __0_0.distcp …          a file or more a rank, by torch.distributed.checkpoint
    .metadata
    manifest.json           step, facts of the run, SHA-256 of every file
  step-00000030.partial/    being written, or left by a crash
  step-00000010.corrupt/    a checksum was wrong when it was to be used; kept for inspection
  latest                    the name of the newest complete one
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.common.errors import StorageError
from workloads.common.files import replace_text, sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
_LATEST, _MANIFEST = "latest", "manifest.json"
_PARTIAL, _CORRUPT = ".partial", ".corrupt"
_BLOCK_BYTES = 4 * 2**20


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
    for left in folder.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(left)
    partial_folder(folder, step).mkdir()


def commit(folder: Path, manifest: Manifest, *, keep: int) -> None:
    """Make a written checkpoint the latest one, and remove those beyond `keep`."""
    partial, final = partial_folder(folder, manifest.step), step_folder(folder, manifest.step)
    text = json.dumps({"format": FORMAT, "step": manifest.step, "facts": manifest.facts, "files": manifest.files}, indent=1)
    replace_text(partial / _MANIFEST, text + "\n")
    if final.exists():  # of a branch that was left when the run was resumed from before it
        shutil.rmtree(final)
    partial.rename(final)
    sync_folder(folder)
    replace_text(folder / _LATEST, final.name + "\n")
    for path in complete_checkpoints(folder)[keep:]:
        shutil.rmtree(path)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that may be used: the one named by `latest`, then older ones, newest first.

    Checkpoints newer than `latest` belong to a branch that was left. Without a readable `latest` the step decides.
    """
    found = sorted((path for path in folder.glob("step-*") if not path.suffix and (path / _MANIFEST).is_file()), reverse=True)
    try:
        latest = (folder / _LATEST).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return found
    return [path for path in found if path.name <= latest] if any(path.name == latest for path in found) else found


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        StorageError: where it cannot be read or is of another format.
    """
    try:
        content = json.loads((path / _MANIFEST).read_text("utf-8"))
        if content["format"] != FORMAT:
            raise StorageError(
                f"{path}: format {content['format']}; this program reads format {FORMAT}", fix="use the program that wrote it"
            )
        return Manifest(content["step"], content["files"], content["facts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path / _MANIFEST}: cannot be read: {error}", fix="name a complete checkpoint folder, step-NNNNNNNN"
        ) from error


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
    shutil.rmtree(partial_folder(folder, step), ignore_errors=True)
