"""Test the check of the inotify limit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.kernel_limits import inotify_shortage

if TYPE_CHECKING:
    from pathlib import Path


def a_kernel(root: Path, *, limit: str, used: int) -> Path:
    """Create a proc folder with a limit and one process with so many inotify instances."""
    settings = root / "sys/fs/inotify"
    settings.mkdir(parents=True)
    (settings / "max_user_instances").write_text(limit)
    descriptors = root / "42/fd"
    descriptors.mkdir(parents=True)
    for number in range(used):
        (descriptors / str(number)).symlink_to("anon_inode:inotify")
    (descriptors / "99").symlink_to("/dev/null")
    return root


@pytest.mark.parametrize(("limit", "used", "wanted"), [("128", 0, 12), ("1024", 24, 100), ("128", 8, 12)])
def test_sufficient_limit_gives_no_warning(tmp_path: Path, limit: str, used: int, wanted: int) -> None:
    """The warning is empty if the limit suffices."""
    assert inotify_shortage(wanted, a_kernel(tmp_path, limit=limit, used=used), uid=os.getuid()) == ""


def test_low_limit_gives_a_warning_with_the_command(tmp_path: Path) -> None:
    """The warning has the limit, the used and needed instances, and the sysctl command."""
    warning = inotify_shortage(13, a_kernel(tmp_path, limit="128\n", used=5), uid=os.getuid())

    assert "is 128, 5 are in use, and 13 hosts need up to 130" in warning
    assert warning.endswith("fix: sysctl -w fs.inotify.max_user_instances=1024")


@pytest.mark.parametrize("limit", ["", "many"])
def test_unreadable_limit_gives_no_warning(tmp_path: Path, limit: str) -> None:
    """The warning is empty if the limit is unknown."""
    assert inotify_shortage(500, a_kernel(tmp_path, limit=limit, used=5), uid=os.getuid()) == ""
    assert inotify_shortage(500, tmp_path / "nothing") == ""
