"""Writes files atomically: after a crash or during a write, a file has its old or its new content, never a part of it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_atomic(path: Path, data: str | bytes, *, mode: int | None = None, like: Path | None = None, durable: bool = True) -> None:
    """Replace a file, or create it; the folder must exist.

    Args:
        path: The file. A symbolic link is replaced by a file; resolve it first to write to its target.
        data: The whole content; text is encoded as UTF-8.
        mode: Permissions of the file. None: 0666 minus the umask.
        like: A file whose owner, permissions and extended attributes the file gets, instead of `mode`. Not for a folder that another
            account can change, because the attributes are set by path.
        durable: Sync the file and its folder to disk before returning. False only for a file that can be recreated.

    Raises:
        OSError: The file could not be written; the old content is unchanged.
    """
    with _complete_file(path, data, 0o600 if like else mode, None, durable=durable) as temporary:
        if like:
            shutil.copystat(like, temporary)
            os.chown(temporary, like.stat().st_uid, like.stat().st_gid)
        temporary.replace(path)


def write_owned(path: Path, data: str | bytes, *, mode: int, owner: tuple[int, int]) -> None:
    """Replace a file, or create it, for another account and group, given by their ids. That account may own the folder.

    Raises:
        OSError: The file could not be written; the old content is unchanged.
    """
    with _complete_file(path, data, mode, owner, durable=True) as temporary:
        temporary.replace(path)


def create_atomic(path: Path, data: str | bytes, *, mode: int | None = None, durable: bool = True) -> None:
    """Create a file with its content; if several processes try, one succeeds. The arguments are those of `write_atomic`.

    Raises:
        FileExistsError: The file exists; it is unchanged.
        OSError: The file could not be created.
    """
    with _complete_file(path, data, mode, None, durable=durable) as temporary:
        os.link(temporary, path)


def write_if_changed(path: Path, data: str | bytes, *, mode: int | None = None, durable: bool = True) -> bool:
    """Call `write_atomic` unless the file already has this content; return whether it was written. Creates missing folders."""
    content = _encoded(data)
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content, mode=mode, durable=durable)
    return True


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data to an open file; a single `os.write` may write only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that files created or renamed in it survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: this file system cannot sync folders; fsync(2)
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _complete_file(path: Path, data: str | bytes, mode: int | None, owner: tuple[int, int] | None, *, durable: bool) -> Iterator[Path]:
    """Write a temporary file in the target's folder and yield it; remove it afterwards if it still exists."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else mode & 0o600)
        try:
            write_all(descriptor, _encoded(data))
            if owner is not None:
                os.fchown(descriptor, *owner)
            if mode is not None:
                os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield temporary
        if durable:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _encoded(data: str | bytes) -> bytes:
    return data.encode("utf-8") if isinstance(data, str) else data
