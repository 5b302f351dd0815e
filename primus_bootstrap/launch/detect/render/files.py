"""Write files with given contents; leave files that already have them unchanged."""

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
    """One changed file. `before` or `after` is None if the file does not exist."""

    path: Path
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, str]:
        """Return the change in the format of Ansible's diff."""
        return {"before_header": str(self.path), "after_header": str(self.path), "before": self.before or "", "after": self.after or ""}


def write_files(root: Path, contents: Mapping[str, str | None], *, check: bool) -> tuple[Change, ...]:
    """Write each file, or remove it if its content is None; return the changes. With `check`, change nothing."""
    changes = tuple(change for name, content in contents.items() if (change := _difference(root / name, content)))
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
    correct = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == _FILE_MODE and found.st_uid == os.geteuid()
    return None if before == content and correct else Change(path, before, content)


def _write(path: Path, content: str) -> None:
    _make_folder(path.parent)
    write_atomic(path, content, mode=_FILE_MODE)


def _make_folder(path: Path) -> None:
    """Create a folder and its parents, readable for all users whatever the umask."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(_FOLDER_MODE)
