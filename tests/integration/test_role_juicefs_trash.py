"""The program that hides the trash of a volume."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = content.roles_dir() / "juicefs" / "files" / "juicefs_trash.sh"
NUMBER = "9223372032828243968"


def close(folder: Path, number: str, *mode: str) -> tuple[str, str]:
    """Run the program with this inode number of the trash; return its output and its mounts."""
    stat = f'#!/bin/sh\n[ "{number}" ] || exit 1\necho "{number}"\n'
    for name, text in (("stat", stat), ("mount", f'#!/bin/sh\necho "$*" >> {folder}/mounted\n')):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["/bin/sh", SCRIPT, "/jfs", *mode], env=environment, capture_output=True, text=True, check=True, timeout=60)
    mounted = folder / "mounted"
    return done.stdout.strip(), mounted.read_text(encoding="utf-8").strip() if mounted.exists() else ""


def test_trash_folder_is_covered(tmp_path: Path) -> None:
    """By an empty, read-only folder that only root can enter."""
    said, mounted = close(tmp_path, NUMBER)

    assert said == "closes"
    assert mounted.split()[-1] == "/jfs/.trash"
    assert {"ro", "nosuid", "nodev", "noexec", "mode=0500"} <= set(mounted.split()[3].split(","))


@pytest.mark.parametrize("number", ["", "1", "2049"])
def test_other_entries_are_not_covered(tmp_path: Path, number: str) -> None:
    """Covers a missing or covered trash, and a user's folder or link of that name."""
    assert close(tmp_path, number) == ("", "")


def test_check_mode_changes_nothing(tmp_path: Path) -> None:
    """It reports the pending change."""
    assert close(tmp_path, NUMBER, "look") == ("closes", "")
