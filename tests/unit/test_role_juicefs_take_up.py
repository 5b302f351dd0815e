"""Detection of the processes that use a mount."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FILES = content.roles_dir() / "juicefs" / "files"
users: Any = load_file(FILES / "juicefs_users.py")


# --- The reload of the unit ---


# --- Users of a mount ---


def process(proc: Path, number: int, *, mount_id: str = "", cwd: str = "/", namespace: str = "pid:[1]") -> None:
    """Create a process with an open file on a mount, a working directory and a PID namespace."""
    folder = proc / str(number)
    (folder / "fdinfo").mkdir(parents=True)
    (folder / "ns").mkdir()
    (folder / "comm").write_text("train.py\n", encoding="utf-8")
    (folder / "mountinfo").write_text(f"21 1 0:5 / / rw - ext4 a b\n{40 + number} 21 0:77 / /jfs rw - fuse.juicefs c d\n", encoding="utf-8")
    (folder / "fdinfo" / "3").write_text(f"pos:\t0\nmnt_id:\t{mount_id or '21'}\n", encoding="utf-8")
    (folder / "cwd").symlink_to(cwd)
    (folder / "ns" / "pid").symlink_to(namespace)


def test_users_and_containers_are_reported_but_host_services_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open file or a working directory on the mount's device counts; mere visibility does not."""
    process(tmp_path, 1)
    (tmp_path / "self").symlink_to(tmp_path / "1")
    process(tmp_path, 7, mount_id="47")
    process(tmp_path, 8, cwd="/jfs/home/ada")
    process(tmp_path, 9, namespace="pid:[2]", mount_id="49")
    process(tmp_path, 10)
    monkeypatch.setattr(users, "counts", lambda folder, _: folder.name != "8")

    found = users.users("/jfs", tmp_path)

    assert found == ["train.py (7)", "train.py (9)"]
    assert users.uses(tmp_path / "8", "0:77")
    assert not users.uses(tmp_path / "10", "0:77")


def test_plain_folder_has_no_users(tmp_path: Path) -> None:
    """An empty list does not block a restart."""
    process(tmp_path, 1, mount_id="41")
    (tmp_path / "self").symlink_to(tmp_path / "1")

    assert users.users("/elsewhere", tmp_path) == []
