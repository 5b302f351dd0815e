"""Module `shared_folders`: owners and modes of folders on shared storage, and entries that it refuses."""

from __future__ import annotations

import os
import pwd
import stat
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

load_role_module("juicefs", "shared_folders")

from ansible.module_utils import folder_tree as tree  # noqa: E402 - the line above makes it importable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other accounts")
# Two accounts that every system has.
ADA, BOB = pwd.getpwnam("daemon"), pwd.getpwnam("nobody")
CLUSTER = [
    {"path": "home", "mode": "0755", "adopt": True},
    {"path": "primus", "mode": "0755", "adopt": True},
    {"path": "primus/verify", "mode": "0700", "adopt": True},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a mount as older releases created it: writable by all."""
    path = tmp_path / "jfs"
    path.mkdir()
    path.chmod(0o777)
    return path


def request(root: Path, **more: Any) -> dict[str, Any]:
    """Return the folders that the role requests."""
    usual = {"folders": CLUSTER, "homes": [{"name": "daemon"}], "shared": ["data"], "shared_group": "games"}
    return {"root": str(root), "root_mode": "0755", **usual, **more}


def owner_and_mode(path: Path) -> tuple[int, int]:
    """Return owner and mode of an entry, without following links."""
    found = path.lstat()
    return found.st_uid, stat.S_IMODE(found.st_mode)


def test_new_volume_gets_all_folders_and_second_run_changes_nothing(root: Path) -> None:
    """Root owns the top. Homes are private; shared folders are sticky."""
    problems, first = tree.apply_tree(request(root), check=False)
    _, second = tree.apply_tree(request(root), check=False)

    assert problems == []
    assert len(first) == 6
    assert second == []
    assert owner_and_mode(root) == (0, 0o755)
    assert owner_and_mode(root / "home/daemon") == (ADA.pw_uid, 0o700)
    assert owner_and_mode(root / "data") == (0, 0o3775)
    assert owner_and_mode(root / "primus/verify") == (0, 0o700)


def test_check_mode_reports_the_same_folders(root: Path) -> None:
    """It changes nothing and also handles missing parents."""
    problems, looked = tree.apply_tree(request(root), check=True)
    untouched = (list(root.iterdir()), owner_and_mode(root)[1])
    _, changed = tree.apply_tree(request(root), check=False)

    assert problems == []
    assert untouched == ([], 0o777)
    assert looked == changed


def test_old_layouts_are_migrated_without_recursion(root: Path) -> None:
    """A user's folder in the place of a cluster folder becomes root's. Its content and /jfs/ACCOUNT keep owner and mode."""
    for path, mode in (("primus/jobs/old", 0o700), ("daemon", 0o755), ("home", 0o777)):
        (root / path).mkdir(parents=True)
        (root / path).chmod(mode)
        os.chown(root / path, ADA.pw_uid, ADA.pw_gid)
    (root / "daemon/file").write_text("kept", encoding="utf-8")
    os.chown(root / "primus", ADA.pw_uid, ADA.pw_gid)
    problems, _ = tree.apply_tree(request(root), check=False)

    assert problems == []
    assert owner_and_mode(root / "primus") == (0, 0o755)
    assert owner_and_mode(root / "home") == (0, 0o755)
    assert owner_and_mode(root / "primus/jobs/old") == (ADA.pw_uid, 0o700)
    assert owner_and_mode(root / "daemon") == (ADA.pw_uid, 0o755)
    assert (root / "daemon/file").read_text(encoding="utf-8") == "kept"


def test_all_invalid_entries_are_refused_at_once(root: Path, tmp_path: Path) -> None:
    """A link, a file and a foreign home are each reported with kind, owner and command. Nothing changes."""
    target = tmp_path / "etc"
    target.mkdir(mode=0o755)
    (root / "primus").symlink_to(target)
    (root / "data").write_text("x", encoding="utf-8")
    (root / "home/daemon").mkdir(parents=True)
    for path in (root / "primus", root / "data", root / "home/daemon"):
        os.chown(path, BOB.pw_uid, BOB.pw_gid, follow_symlinks=False)
    problems, _ = tree.apply_tree(request(root), check=False)
    found = {one["path"].removeprefix(f"{root}/"): one for one in problems}

    assert sorted(found) == ["data", "home/daemon", "primus"]
    assert "a symbolic link owned by nobody" in found["primus"]["problem"]
    assert "a regular file owned by nobody" in found["data"]["problem"]
    assert "is owned by nobody" in found["home/daemon"]["problem"]
    assert all(f"mv {root}/{name}" in one["fix"] for name, one in found.items())
    assert owner_and_mode(root)[1] == 0o777
    assert list(target.iterdir()) == []
    assert owner_and_mode(target) == (0, 0o755)


def test_unmounted_folder_is_not_changed(root: Path) -> None:
    """Without the file system, the empty folder keeps owner and mode."""
    problems, differing = tree.apply_tree(request(root, mounted=True), check=False)

    assert [one["problem"] for one in problems] == ["has nothing mounted on it"]
    assert differing == []
    assert (list(root.iterdir()), owner_and_mode(root)[1]) == ([], 0o777)


def test_mount_point_below_a_user_folder_is_refused(tmp_path: Path) -> None:
    """The owner of the parent could replace it."""
    os.chown(tmp_path, ADA.pw_uid, -1)
    (tmp_path / "jfs").mkdir()
    problems, _ = tree.apply_tree(request(tmp_path / "jfs"), check=False)

    assert len(problems) == 1
    assert "is owned by daemon" in problems[0]["problem"]


def test_unknown_account_is_reported(root: Path) -> None:
    """The module converts the error into a message with a fix."""
    with pytest.raises(KeyError, match="no-such-account"):
        tree.apply_tree(request(root, homes=[{"name": "no-such-account"}]), check=False)
