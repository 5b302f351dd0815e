"""Find the checkpoint from which a run resumes. Reads only.

The trainer has the same rule in `complete_checkpoints` of workloads/train/checkpoint_folder.py; a contract test compares both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"step-(\d{8,})")


def newest_complete(folder: Path) -> str:
    """Return the name of the newest usable checkpoint; empty if there is none or the folder cannot be read.

    Checkpoints newer than the one named in `latest` are from an abandoned branch, even if that checkpoint no longer exists.
    """
    try:
        found = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / "manifest.json").is_file()]
    except OSError:
        return ""
    try:
        latest = (folder / "latest").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        latest = ""
    usable = [name for name in found if name <= latest] if _NAME.fullmatch(latest) else found
    return max(usable, default="")


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name; None if it is not the name of a checkpoint."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
