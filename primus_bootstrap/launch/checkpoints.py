"""Which checkpoint a run goes on from: the one place in this package that knows the trainer's rule. Reads only.

The trainer's own is `complete_checkpoints` of workloads/train/checkpoint_folder.py, which nothing here imports; a contract test holds both
against the same folders.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"step-(\d{8,})")


def newest_complete(folder: Path) -> str:
    """Return the name of the newest checkpoint that may be used; empty where there is none, or the folder cannot be read.

    Those that are newer than the one that `latest` names belong to a branch that was left, also where that one is not there any more.
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
    """Return the step of a checkpoint by its name; None of none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
