"""Reading /sys and /proc of a host, or of a tree that looks like one: the only module that knows that every file there may be missing.

A device can vanish between two reads, a file can be unreadable or hold garbage, a link can dangle. Nothing here raises for that:
what could not be read is `None`, and what that means is decided by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A sysfs attribute is at most one page; more than that is not what was asked for.
_PAGE = 4096


@dataclass(frozen=True)
class Host:
    """The root under which `sys/` and `proc/` of one machine lie; `/` is this machine."""

    root: Path

    def path(self, *parts: str) -> Path:
        """Return a path below the root."""
        return self.root.joinpath(*parts)

    def has_sysfs(self) -> bool:
        """Say whether there is a `sys` folder that can be listed and is not empty."""
        return bool(names_in(self.path("sys")))


def read_text(path: Path) -> str | None:
    """Return a file's first page without surrounding white space, or None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_PAGE).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def read_int(path: Path, *, base: int = 10) -> int | None:
    """Return the number in a file, or None where there is none."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def names_in(path: Path) -> tuple[str, ...]:
    """Return the sorted names in a folder; none where it cannot be listed."""
    try:
        return tuple(sorted(entry.name for entry in path.iterdir()))
    except (OSError, ValueError):
        return ()


def device_path(path: Path) -> tuple[str, ...]:
    """Return the parts of a device's real path from its PCI host bridge (`pci0000:15`) on; empty where the link leads nowhere."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    for index, part in enumerate(parts):
        if part.startswith("pci") and ":" in part:
            return parts[index:]
    return ()


def link_name(path: Path) -> str:
    """Return the last part of what a link points to, or an empty string where it is no link."""
    try:
        return path.readlink().name
    except (OSError, ValueError):
        return ""
