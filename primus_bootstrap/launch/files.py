"""Bringing files of ours to their stated content: the only module of this package that writes, atomically, and only what differs."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    replace_text(path, content, mode=_FILE_MODE)


def replace_text(path: Path, text: str, *, mode: int) -> None:
    """Give a file its whole content at once, durable before this returns; a reader sees the old content or the new."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_folder(path: Path) -> None:
    """Make a folder and its parents readable for everybody, whatever the umask."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(_FOLDER_MODE)
