# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Replace files and links of a host that a container may mount or another package may own."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ansible.module_utils.atomic_files import write_atomic, write_owned

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, data: str | bytes, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file atomically, and create its folder. `owner` has the ids of account and group.

    Raises:
        OSError: The file could not be written. It has the path of the file, not that of a temporary one.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        if owner is None:
            write_atomic(path, data, mode=mode)
        else:
            write_owned(path, data, mode=mode, owner=owner)
    except OSError as error:
        # In a container /etc/hosts is a mount, which can be rewritten but not replaced.
        if error.errno != errno.EBUSY:
            raise OSError(error.errno, error.strerror, str(path)) from error
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def replace_link(path: Path, target: str) -> None:
    """Point a symbolic link at a target, and create its folder. The path never has no link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.primus-new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(path)
