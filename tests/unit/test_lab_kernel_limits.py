"""Whether this machine's kernel has enough for more hosts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.kernel_limits import shortage

if TYPE_CHECKING:
    from pathlib import Path


def a_kernel(root: Path, *, limit: str, used: int) -> Path:
    """Lay out a /proc with a limit and one process of ours that holds so many watchers."""
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
def test_enough_is_silent(tmp_path: Path, limit: str, used: int, wanted: int) -> None:
    """Where every host gets its watchers, nothing is said."""
    assert shortage(wanted, a_kernel(tmp_path, limit=limit, used=used), account=os.getuid()) == ""


def test_too_few_are_named_with_the_command_that_helps(tmp_path: Path) -> None:
    """The message has the limit, what is in use, what is needed, and a number that is enough."""
    said = shortage(13, a_kernel(tmp_path, limit="128\n", used=5), account=os.getuid())

    assert "is 128, 5 are in use, and 13 hosts take up to 130" in said
    assert said.endswith("fix: sysctl -w fs.inotify.max_user_instances=1024")


@pytest.mark.parametrize("limit", ["", "many"])
def test_a_limit_that_cannot_be_read_is_no_shortage(tmp_path: Path, limit: str) -> None:
    """Where the kernel does not say, nothing is claimed."""
    assert shortage(500, a_kernel(tmp_path, limit=limit, used=5), account=os.getuid()) == ""
    assert shortage(500, tmp_path / "nothing") == ""
