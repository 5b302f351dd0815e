"""Which files differ from the main branch: a test that takes long runs where one of its files does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parent.parent
# What every test stands on.
_ALWAYS = ("constraints.txt", "pyproject.toml", "ansible.cfg", "primus_bootstrap/core", "tests/conftest.py", "tests/changed.py")


def changed_files() -> tuple[str, ...] | None:
    """Return the changed files as paths from the root, new ones too; None where there is nothing to compare with."""
    done = subprocess.run([str(ROOT / "tools/changed.sh")], capture_output=True, text=True, check=False, timeout=60)
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else None


def concerns(changed: Iterable[str], paths: Sequence[str]) -> bool:
    """Return whether one of the changed files is one of these paths or lies below one, or is one that concerns every test."""
    wanted = [path.rstrip("/") for path in (*paths, *_ALWAYS)]
    return any(file == path or file.startswith(f"{path}/") for file in changed for path in wanted)
