"""Read /sys and /proc of a host. A missing or unreadable file is `None`, never an exception: devices can disappear between two reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A sysfs attribute is at most one page.
_PAGE = 4096


@dataclass(frozen=True)
class Host:
    """The root folder that contains `sys/` and `proc/`; `/` for this host."""

    root: Path

    def path(self, *parts: str) -> Path:
        """Return a path below the root."""
        return self.root.joinpath(*parts)

    def has_sysfs(self) -> bool:
        """Return whether the `sys` folder can be listed and is not empty."""
        return bool(names_in(self.path("sys")))


def read_text(path: Path) -> str | None:
    """Return a file's first page without surrounding white space, or None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_PAGE).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def read_int(path: Path, *, base: int = 10) -> int | None:
    """Return the number in a file, or None."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def names_in(path: Path) -> tuple[str, ...]:
    """Return the sorted names in a folder, or nothing if it cannot be listed."""
    try:
        return tuple(sorted(entry.name for entry in path.iterdir()))
    except (OSError, ValueError):
        return ()


def device_path(path: Path) -> tuple[str, ...]:
    """Return the parts of a device's real path, starting at its PCI host bridge (`pci0000:15`); empty for a dangling link."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    for index, part in enumerate(parts):
        if part.startswith("pci") and ":" in part:
            return parts[index:]
    return ()


def link_name(path: Path) -> str:
    """Return the last part of a link's target, or an empty string if it is not a link."""
    try:
        return path.readlink().name
    except (OSError, ValueError):
        return ""
