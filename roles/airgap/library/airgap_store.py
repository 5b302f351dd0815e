#!/usr/bin/python
"""Keep the files of a bundle on the host that offers them: the Ansible module `airgap_store`, which the action `airgap_fill` calls.

`look` says which files are missing or have another sum; `unpack` takes files out of an archive, each under its name only once its sum was
compared; `tidy` removes what the bundle does not hold any more. A folder with files of somebody else's is refused: a mark says of a folder
that it is ours to tidy and to remove.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCK_BYTES = 1 << 20
MARK = ".primus-airgap"


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def lacking(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the paths that are missing or have another sum."""
    return [path for path, wanted in sums.items() if not (folder / path).is_file() or sum_of(folder / path) != wanted]


def surplus(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Return the paths of files that are no part of the bundle."""
    found = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
    return sorted(path for path in (str(one.relative_to(folder)) for one in found) if path not in sums and path != MARK)


def foreign(folder: Path, beside: Sequence[str]) -> str:
    """Return some of the files beside a bundle's where the folder was never ours, nothing otherwise."""
    return "" if (folder / MARK).exists() else ", ".join(beside[:3])


def unpack(archive: Path, folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Take files out of an archive; return the paths of those whose sum is another one."""
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
            if sum_of(fresh) != sums[member.name]:
                fresh.unlink()
                wrong.append(member.name)
                continue
            fresh.chmod(0o644)
            fresh.replace(target)
    return wrong


def tidy(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Remove files that are no part of the bundle; return their paths."""
    gone = surplus(folder, sums)
    for path in gone:
        (folder / path).unlink()
    return gone


def main() -> None:
    """Read the arguments, do one step, and report."""
    spec = {
        "step": {"type": "str", "choices": ["look", "unpack", "tidy"], "required": True},
        "folder": {"type": "str", "required": True},
        "sums": {"type": "str", "required": True},  # JSON: a dictionary of thousands is passed as it is
        "archive": {"type": "str", "default": ""},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    step, folder, sums = module.params["step"], Path(module.params["folder"]), json.loads(module.params["sums"])
    found: dict[str, list[str]] = {}
    try:
        if step == "look":
            found = {"lacking": lacking(folder, sums), "surplus": surplus(folder, sums)}
            if theirs := foreign(folder, found["surplus"]):
                module.fail_json(msg=f"{folder} holds what no bundle brought: {theirs}. Fix: set airgap_mirror_dir to a folder of its own")
        elif step == "unpack":
            found = {"wrong": unpack(Path(module.params["archive"]), folder, sums)}
        else:
            found = {"gone": tidy(folder, sums)}
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or folder}: {error.strerror}. Fix: free space on that disk, or set airgap_mirror_dir to another"
        )
    module.exit_json(changed=step != "look", **found)


if __name__ == "__main__":
    main()
