"""The inventories that the project ships: the tracked ones, without folders that a user keeps beside them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path


def inventory_files(pattern: str = "*/hosts.yaml") -> list[Path]:
    """Return the tracked files below `inventory/` that match a pattern; all files if this is not a git checkout."""
    folder = content.topologies_dir()
    found = sorted(path for path in folder.glob(pattern) if ".primus" not in path.parts)
    listed = subprocess.run(["git", "-C", str(folder), "ls-files", "-z"], capture_output=True, text=True, timeout=60, check=False)
    shipped = {folder / name for name in listed.stdout.split("\0") if name}
    return [path for path in found if path in shipped] if listed.returncode == 0 and shipped else found
