"""Bring files to their stated content; a file that already has it is not touched."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


@dataclass(frozen=True)
class Change:
    """One file that differs from what is wanted. `before` and `after` are None where there is no file."""

    path: Path
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, str]:
        """Return the change as Ansible shows differences."""
        return {"before_header": str(self.path), "after_header": str(self.path), "before": self.before or "", "after": self.after or ""}


def bring_about(root: Path, wanted: Mapping[str, str | None], *, check: bool) -> tuple[Change, ...]:
    """Make each file have its content, or not exist where that is None; return what was (with `check`: would be) changed."""
    changes = tuple(change for name, content in wanted.items() if (change := _difference(root / name, content)))
    if not check:
        for change in changes:
            if change.after is None:
                change.path.unlink()
            else:
                _write(change.path, change.after)
    return changes


def _difference(path: Path, content: str | None) -> Change | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None if content is None else Change(path, None, content)
    before = (
        path.read_text("utf-8", "replace") if stat.S_ISREG(found.st_mode) else f"(not a regular file, mode {stat.filemode(found.st_mode)})"
    )
    right = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == _FILE_MODE and found.st_uid == os.geteuid()
    return None if before == content and right else Change(path, before, content)


def _write(path: Path, content: str) -> None:
    _make_folder(path.parent)
    write_atomic(path, content, mode=_FILE_MODE)


def _make_folder(path: Path) -> None:
    """Make a folder and its parents readable for everybody, whatever the umask."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(_FOLDER_MODE)
