"""What git would call the content of an archive: so that a release, however it was packed, is known as a pinned commit's.

The form of objects is https://git-scm.com/book/en/v2/Git-Internals-Git-Objects. The proof is as strong as that of a checkout: SHA-1. It is
made of the archive's own words: unpacking rewrites modes and the targets of links.
"""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    # A mode of git and the SHA-1 of what bears it, or a folder of such.
    _Entry: TypeAlias = "tuple[bytes, bytes] | dict[str, _Entry]"

_EXECUTABLE = 0o100


def tree_of_archive(path: Path) -> str:
    """Return the name of the tree below the one folder that an archive holds, as 40 hex digits.

    Raises:
        ValueError: it is no such archive.
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
        raise ValueError("it does not hold one folder")
    return _tree(tops[0]).hex()


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[bytes, bytes] | None:
    """Return mode and name of a file or link; nothing of a folder, which follows from what it holds."""
    if member.isdir():
        return None
    if member.issym():
        return b"120000", _named("blob", member.linkname.encode())
    content = archive.extractfile(member)
    if content is None:
        raise ValueError(f"{member.name} is no file, folder or link")
    return b"100755" if member.mode & _EXECUTABLE else b"100644", _named("blob", content.read())


def _put(folder: dict[str, _Entry], parts: list[str], entry: tuple[bytes, bytes]) -> None:
    for part in parts[:-1]:
        inner = folder.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{part} is a file and a folder")  # noqa: TRY004 - the archive is wrong, not a caller
        folder = inner
    folder[parts[-1]] = entry


def _tree(folder: dict[str, _Entry]) -> bytes:
    # git sorts a folder as if its name ended with a slash.
    keys = sorted((f"{name}/" if isinstance(one, dict) else name).encode() for name, one in folder.items())
    content = b""
    for key in keys:
        name = key.removesuffix(b"/")
        one = folder[name.decode()]
        mode, sha1 = (b"40000", _tree(one)) if isinstance(one, dict) else one
        content += mode + b" " + name + b"\0" + sha1
    return _named("tree", content)


def _named(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).digest()
