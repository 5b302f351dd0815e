"""Creation of root-owned names in /tmp for JuiceFS, against attacks of other accounts."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

program = load_file(content.roles_dir() / "juicefs/files/juicefs_claim.py")


def nothing(path: Path) -> None:
    """Leave the name unused."""
    path.unlink(missing_ok=True)


def full_folder(path: Path) -> None:
    """Create a folder with a file."""
    path.mkdir()
    (path / "socket").touch()


def link(path: Path) -> None:
    """Create a link to another folder."""
    path.symlink_to(path.parent / "kept")


def deep_folder(path: Path) -> None:
    """Create a tree with more levels than Python can recurse."""
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


PLANTED: list[Callable[[Any], None]] = [nothing, os.mkfifo, full_folder, deep_folder, link, lambda path: path.touch()]


@pytest.mark.parametrize("plant", PLANTED, ids=["nothing", "pipe", "folder", "deep", "link", "file"])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_planted_entry_is_replaced_by_one_of_root(tmp_path: Path, plant: Callable[[Path], None], kind: str) -> None:
    """An empty folder for the socket or an empty state file. No planted entry is opened, followed or kept."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    path = tmp_path / "name"
    plant(path)

    assert program.main([kind, str(path)]) == 0
    about = path.lstat()
    assert stat.S_IMODE(about.st_mode) == (0o600 if kind == "file" else 0o700)
    assert stat.S_ISREG(about.st_mode) if kind == "file" else stat.S_ISDIR(about.st_mode)
    assert json.loads(path.read_text()) == {"Handler": {}, "NextFh": 1} if kind == "file" else list(path.iterdir()) == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kept", "name"]
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_account_that_wins_every_race_does_not_keep_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The account creates a full folder before each creation."""
    path = tmp_path / "name"

    def after_the_other(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*words: Any, **options: Any) -> Any:
            if str(path) in map(str, words) and not os.path.lexists(path):
                mkdir(path)
                (path / "socket").touch()
            return call(*words, **options)

        return made

    mkdir = os.mkdir
    for name in ("mkdir", "open", "rename", "link", "symlink"):
        monkeypatch.setattr(os, name, after_the_other(getattr(os, name)))

    assert program.main([kind, str(path)]) == 0
    assert path.is_file() if kind == "file" else list(path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare, for mounts of its own")
def test_mount_on_the_name_is_removed(tmp_path: Path) -> None:
    """Accounts may mount on their own folder with fusermount3. The test mounts tmpfs twice in a namespace."""
    path, file = tmp_path / "name", content.roles_dir() / "juicefs/files/juicefs_claim.py"
    path.mkdir()
    mounts = f"mount -t tmpfs none {path} && mount -t tmpfs none {path} && touch {path}/there"
    script = f"{mounts} && {sys.executable} -I {file} folder {path} && ! grep {path} /proc/self/mounts && ls -A {path}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
