"""The files that differ from the main branch. A long test runs if one of its files is among them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parent.parent
# A change in one of these concerns every test.
_ALWAYS = ("constraints.txt", "pyproject.toml", "ansible.cfg", "primus_bootstrap/core", "tests/conftest.py", "tests/changed.py")


def changed_files() -> tuple[str, ...] | None:
    """Return the changed and new files as paths from the root; None if there is no commit to compare with."""
    done = subprocess.run([str(ROOT / "tools/changed.sh")], capture_output=True, text=True, check=False, timeout=60)
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else None


def concerns(changed: Iterable[str], paths: Sequence[str]) -> bool:
    """Return whether a changed file is one of these paths, lies below one, or concerns every test."""
    wanted = [path.rstrip("/") for path in (*paths, *_ALWAYS)]
    return any(file == path or file.startswith(f"{path}/") for file in changed for path in wanted)
