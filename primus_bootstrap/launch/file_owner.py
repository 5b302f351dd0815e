"""Check that no other account can change a file of the project that runs as this account."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def check_owner(path: Path, folder: Path, effect: str, option: str) -> None:
    """Check the owner of a file and of the folders from `folder` down to it.

    Args:
        effect: What happens to the files, for the message.
        option: The option that accepts the folder in spite of its owner.

    Raises:
        UsageError: One of them belongs to another account (neither root nor this one).
    """
    for checked in (path, *(parent for parent in path.parents if parent == folder or folder in parent.parents)):
        for status in (checked.lstat(), checked.stat()):
            if status.st_uid not in (0, os.geteuid()):
                raise UsageError(
                    f"{checked}: owned by another account (uid {status.st_uid}); {effect}",
                    fix=f"remove it, change to another folder, or, if you trust the folder, pass {option} {folder}",
                )
