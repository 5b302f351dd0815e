"""Finds the inventories below the current folder, for the message that there is no hosts.yaml."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from primus_bootstrap.inventory.cluster import STATE_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

_PATTERNS = ("*/hosts.yaml", "*/*/hosts.yaml")
_SHOWN = 4


def missing_file_fix(here: Path) -> str:
    """Return the fix for a missing hosts.yaml: the inventories that were used, the last one first, or else all that can be seen."""
    found = sorted(file.parent for file in chain.from_iterable(map(here.glob, _PATTERNS)) if file.is_file())
    used = sorted((folder for folder in found if _last_used(folder)), key=_last_used, reverse=True)
    names = [str(folder.relative_to(here)) for folder in used or found if not _is_hidden(folder.relative_to(here))][:_SHOWN]
    create = "create a new one: primus-bootstrap init FOLDER"
    if not names:
        return f"check the path, or {create.replace('one', 'inventory')}"
    return f"name an inventory: {', '.join(names)} (with `ssh`, `exec` and `bundle`: `-i {names[0]}`), or {create}"


def _last_used(folder: Path) -> float:
    """Return when a verb last changed the state of the inventory's cluster, in seconds since the epoch; 0 if never."""
    try:
        return max((state.stat().st_mtime for state in (folder / STATE_FOLDER).iterdir()), default=0.0)
    except OSError:
        return 0.0


def _is_hidden(folder: Path) -> bool:
    return any(part.startswith(".") for part in folder.parts)
