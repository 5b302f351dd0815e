"""The module `shared_folders`: owners and modes of the folders on shared storage, and what it refuses by name."""

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
    """Return the top of a mount as older releases left it: everybody may write there."""
    path = tmp_path / "jfs"
    path.mkdir()
    path.chmod(0o777)
    return path


def wanted(root: Path, **more: Any) -> dict[str, Any]:
    """Return what the role asks for."""
    usual = {"folders": CLUSTER, "homes": [{"name": "daemon"}], "shared": ["data"], "shared_group": "games"}
    return {"root": str(root), "root_mode": "0755", **usual, **more}


def seen(path: Path) -> tuple[int, int]:
    """Return owner and mode of what lies there itself."""
    found = path.lstat()
    return found.st_uid, stat.S_IMODE(found.st_mode)


def test_a_new_volume_gets_all_folders_and_a_second_run_changes_nothing(root: Path) -> None:
    """The top is root's, homes are their accounts' alone, and shared folders let members add but not remove."""
    problems, first = tree.bring(wanted(root), check=False)
    _, second = tree.bring(wanted(root), check=False)

    assert problems == []
    assert len(first) == 6
    assert second == []
    assert seen(root) == (0, 0o755)
    assert seen(root / "home/daemon") == (ADA.pw_uid, 0o700)
    assert seen(root / "data") == (0, 0o3775)
    assert seen(root / "primus/verify") == (0, 0o700)


def test_a_look_changes_nothing_and_names_the_same_folders(root: Path) -> None:
    """In check mode, also where parents are still to come."""
    problems, looked = tree.bring(wanted(root), check=True)
    untouched = (list(root.iterdir()), seen(root)[1])
    _, changed = tree.bring(wanted(root), check=False)

    assert problems == []
    assert untouched == ([], 0o777)
    assert looked == changed


def test_older_clusters_are_migrated_without_a_look_into_them(root: Path) -> None:
    """A user's folder where the cluster's is to be becomes root's, what lies in it keeps owner and mode, and so does /jfs/ACCOUNT."""
    for path, mode in (("primus/jobs/old", 0o700), ("daemon", 0o755), ("home", 0o777)):
        (root / path).mkdir(parents=True)
        (root / path).chmod(mode)
        os.chown(root / path, ADA.pw_uid, ADA.pw_gid)
    (root / "daemon/file").write_text("kept", encoding="utf-8")
    os.chown(root / "primus", ADA.pw_uid, ADA.pw_gid)
    problems, _ = tree.bring(wanted(root), check=False)

    assert problems == []
    assert seen(root / "primus") == (0, 0o755)
    assert seen(root / "home") == (0, 0o755)
    assert seen(root / "primus/jobs/old") == (ADA.pw_uid, 0o700)
    assert seen(root / "daemon") == (ADA.pw_uid, 0o755)
    assert (root / "daemon/file").read_text(encoding="utf-8") == "kept"


def test_what_must_not_be_there_is_refused_all_at_once_and_nothing_changes(root: Path, tmp_path: Path) -> None:
    """Attack 1: a link, a file and a home of another account are each named with kind, owner and a command; the target stays as it is."""
    target = tmp_path / "etc"
    target.mkdir(mode=0o755)
    (root / "primus").symlink_to(target)
    (root / "data").write_text("x", encoding="utf-8")
    (root / "home/daemon").mkdir(parents=True)
    for path in (root / "primus", root / "data", root / "home/daemon"):
        os.chown(path, BOB.pw_uid, BOB.pw_gid, follow_symlinks=False)
    problems, _ = tree.bring(wanted(root), check=False)
    found = {one["path"].removeprefix(f"{root}/"): one for one in problems}

    assert sorted(found) == ["data", "home/daemon", "primus"]
    assert "a symbolic link of the account nobody" in found["primus"]["problem"]
    assert "a regular file of the account nobody" in found["data"]["problem"]
    assert "belongs to the account nobody" in found["home/daemon"]["problem"]
    assert all(f"mv {root}/{name}" in one["fix"] for name, one in found.items())
    assert seen(root)[1] == 0o777
    assert list(target.iterdir()) == []
    assert seen(target) == (0, 0o755)


def test_a_folder_without_a_mount_is_not_touched(root: Path) -> None:
    """Where the file system is away, the empty folder below keeps owner and mode, and nothing is made in it."""
    problems, differing = tree.bring(wanted(root, mounted=True), check=False)

    assert [one["problem"] for one in problems] == ["has nothing mounted on it"]
    assert differing == []
    assert (list(root.iterdir()), seen(root)[1]) == ([], 0o777)


def test_a_mount_point_below_a_folder_of_users_is_refused(tmp_path: Path) -> None:
    """Whoever owns the folder above could put another one in its place."""
    os.chown(tmp_path, ADA.pw_uid, -1)
    (tmp_path / "jfs").mkdir()
    problems, _ = tree.bring(wanted(tmp_path / "jfs"), check=False)

    assert len(problems) == 1
    assert "belongs to the account daemon" in problems[0]["problem"]


def test_an_account_that_the_host_does_not_know_is_named(root: Path) -> None:
    """The module turns it into a message with a fix."""
    with pytest.raises(KeyError, match="no-such-account"):
        tree.bring(wanted(root, homes=[{"name": "no-such-account"}]), check=False)
