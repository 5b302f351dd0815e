#!/usr/bin/python
"""Ansible module `airgap_store`: manage the files of a bundle on the host that serves them. The action `airgap_fill` calls it.

`list` returns the files that are missing or have another checksum; `unpack` extracts files from an archive and renames each after its
checksum was compared; `remove_unlisted` removes files that are not in the bundle. A marker file shows that the role owns the folder; a
folder with other files and without the marker is refused. ansible.posix.synchronize has no such checks and needs rsync on both sides.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.atomic_files import sync_folder
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCK_BYTES = 1 << 20
MARK = ".primus-airgap"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def missing(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the paths of files that do not exist or have another checksum."""
    return [path for path, wanted in sums.items() if not (folder / path).is_file() or sha256_of(folder / path) != wanted]


def unlisted(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the paths of files that are not in the bundle."""
    found = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
    return sorted(path for path in (str(file.relative_to(folder)) for file in found) if path not in sums and path != MARK)


def foreign_files(folder: Path, unlisted_files: Sequence[str]) -> str:
    """Return some of the unlisted files if the folder is not the role's own, else an empty text."""
    return "" if (folder / MARK).exists() else ", ".join(unlisted_files[:3])


def unpack(archive: Path, folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Extract files from an archive; return the paths of files with another checksum."""
    wrong = []
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    (folder / MARK).touch(mode=0o644)
    with tarfile.open(archive) as source:
        for member in source:
            content = source.extractfile(member)
            if member.name not in sums or content is None:
                wrong.append(member.name)
                continue
            target = folder / member.name
            for parent in reversed(target.relative_to(folder).parents):
                (folder / parent).mkdir(mode=0o755, exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            with fresh.open("wb") as stream:
                for block in iter(lambda content=content: content.read(BLOCK_BYTES), b""):  # type: ignore[misc]
                    stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())
            if sha256_of(fresh) != sums[member.name]:
                fresh.unlink()
                wrong.append(member.name)
                continue
            fresh.chmod(0o644)
            fresh.replace(target)
            sync_folder(target.parent)
    return wrong


def remove_unlisted(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Remove files that are not in the bundle; return their paths."""
    removed = unlisted(folder, sums)
    for path in removed:
        (folder / path).unlink()
    return removed


def main() -> None:
    """Run one step and report."""
    spec = {
        "step": {"type": "str", "choices": ["list", "unpack", "remove_unlisted"], "required": True},
        "folder": {"type": "str", "required": True},
        "sums": {"type": "str", "required": True},  # JSON text, which Ansible passes on without checking thousands of entries
        "archive": {"type": "str", "default": ""},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    step, folder, sums = module.params["step"], Path(module.params["folder"]), json.loads(module.params["sums"])
    found: dict[str, list[str]] = {}
    try:
        if step == "list":
            found = {"missing": missing(folder, sums), "unlisted": unlisted(folder, sums)}
            if others := foreign_files(folder, found["unlisted"]):
                module.fail_json(msg=f"{folder} has files of others: {others}. Fix: set airgap_mirror_dir to an empty or new folder")
        elif step == "unpack":
            found = {"wrong": unpack(Path(module.params["archive"]), folder, sums)}
        else:
            found = {"removed": remove_unlisted(folder, sums)}
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or folder}: {error.strerror}. Fix: free space on that disk, or set airgap_mirror_dir to another"
        )
    module.exit_json(changed=step != "list", **found)


if __name__ == "__main__":
    main()
