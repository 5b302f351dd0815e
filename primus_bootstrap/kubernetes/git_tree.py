"""Compute git's tree hash of an archive, to check that it has the content of a pinned commit.

The object format is https://git-scm.com/book/en/v2/Git-Internals-Git-Objects. The hash is computed from the archive, because
extraction changes modes and link targets.
"""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    # git's mode and the SHA-1 of an object, or a folder of such entries.
    _Entry: TypeAlias = "tuple[bytes, bytes] | dict[str, _Entry]"

_EXECUTABLE = 0o100


def tree_of_archive(path: Path) -> str:
    """Return the hash of the tree below the single top folder of an archive, as 40 hex digits.

    Raises:
        ValueError: The file is not such an archive.
    """
    root: dict[str, _Entry] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if entry := _entry(archive, member):
                    _put(root, member.name.split("/"), entry)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(str(error)) from error
    [*tops] = root.values()
    if len(tops) != 1 or not isinstance(tops[0], dict):
        raise ValueError("it does not have a single top folder")
    return _tree(tops[0]).hex()


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[bytes, bytes] | None:
    """Return the mode and hash of a file or link, or None for a folder."""
    if member.isdir():
        return None
    if member.issym():
        return b"120000", _hash("blob", member.linkname.encode())
    content = archive.extractfile(member)
    if content is None:
        raise ValueError(f"{member.name} is not a file, folder or link")
    return b"100755" if member.mode & _EXECUTABLE else b"100644", _hash("blob", content.read())


def _put(folder: dict[str, _Entry], parts: list[str], entry: tuple[bytes, bytes]) -> None:
    for part in parts[:-1]:
        inner = folder.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{part} is a file and a folder")  # noqa: TRY004 - the archive is wrong, not a caller
        folder = inner
    folder[parts[-1]] = entry


def _tree(folder: dict[str, _Entry]) -> bytes:
    # git sorts a folder as if its name ended with a slash.
    keys = sorted((f"{name}/" if isinstance(entry, dict) else name).encode() for name, entry in folder.items())
    content = b""
    for key in keys:
        name = key.removesuffix(b"/")
        entry = folder[name.decode()]
        mode, sha1 = (b"40000", _tree(entry)) if isinstance(entry, dict) else entry
        content += mode + b" " + name + b"\0" + sha1
    return _hash("tree", content)


def _hash(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).digest()
