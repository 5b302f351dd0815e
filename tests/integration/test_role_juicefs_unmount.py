"""Script that unmounts the volume of a client before its store changes: only if no program uses it, and for good."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_juicefs_take_up import FILES

if TYPE_CHECKING:
    from pathlib import Path

# Each call is recorded. `busy`: the kernel refuses the unmount. `returns`: the unit mounts again.
STUB = """#!/bin/sh
name=$(basename "$0")
echo "$name $*" >> "$STUB/calls"
case "$name $*" in
    python3*) cat "$STUB/users"; [ ! -e "$STUB/unknown" ] ;;
    umount*) [ ! -e "$STUB/busy" ] && : > "$STUB/mounts" ;;
    systemctl*) [ ! -e "$STUB/returns" ] || echo 'JuiceFS:jfs /jfs fuse.juicefs rw' > "$STUB/mounts" ;;
esac
"""


def unmount(folder: Path, *facts: str, mode: str = "do", users: str = "", mounted: bool = True) -> tuple[int, str, list[str]]:
    """Run the script with these facts; return exit code, output and changes."""
    for fact in facts:
        (folder / fact).touch()
    (folder / "users").write_text(users, encoding="utf-8")
    (folder / "mounts").write_text("JuiceFS:jfs /jfs fuse.juicefs rw\n" if mounted else "", encoding="utf-8")
    for name in ("systemctl", "python3", "umount", "close"):
        (folder / name).write_text(STUB, encoding="utf-8")
        (folder / name).chmod(0o755)
    script = (FILES / "unmount_unused.sh").read_text(encoding="utf-8").replace("/proc/mounts", '"$STUB/mounts"')
    words = ["/bin/sh", "-s", "juicefs.service", "/jfs", "users.py", str(folder / "close"), mode]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    done = subprocess.run(words, input=script, env=environment, capture_output=True, text=True, check=False, timeout=60)
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    return done.returncode, done.stdout.strip(), [call for call in calls if not call.startswith("python3")]


def test_unused_volume_is_unmounted_before_its_unit_ends(tmp_path: Path) -> None:
    """The kernel decides first, because stopping the unit would end the process even with open files."""
    assert unmount(tmp_path) == (0, "", ["umount --recursive /jfs", "systemctl disable --quiet --now juicefs.service"])


@pytest.mark.parametrize("mode", ["look", "do"])
def test_volume_that_a_user_has_open_stays_mounted(tmp_path: Path, mode: str) -> None:
    """The users are the output."""
    assert unmount(tmp_path, mode=mode, users="train.py (7)\n") == (4, "train.py (7)", [])


def test_volume_that_root_has_open_stays_mounted_and_its_trash_closed(tmp_path: Path) -> None:
    """The cover of the trash may have been unmounted before the kernel refused."""
    assert unmount(tmp_path, "busy") == (4, "programs of root", ["umount --recursive /jfs", "close /jfs"])


def test_look_changes_nothing(tmp_path: Path) -> None:
    """It only asks for users."""
    assert unmount(tmp_path, mode="look") == (0, "", [])


def test_unmounted_volume_stays_unmounted_at_boot(tmp_path: Path) -> None:
    """A run that was interrupted is repeated."""
    assert unmount(tmp_path, mounted=False) == (0, "", ["systemctl disable --quiet --now juicefs.service"])


@pytest.mark.parametrize("fact", ["unknown", "returns"])
def test_unknown_users_and_a_mount_that_returns_are_errors(tmp_path: Path, fact: str) -> None:
    """Neither counts as unmounted."""
    assert unmount(tmp_path, fact)[0] == 1
