"""primus_bootstrap.core.atomic_files: files that are complete or unchanged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from primus_bootstrap.core import atomic_files
from primus_bootstrap.core.atomic_files import create_atomic, write_all, write_atomic, write_if_changed, write_owned


def _broken_disk(*_arguments: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_replaced_with_its_mode_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    """The new content has the requested mode, whatever the old file's was."""
    path = tmp_path / "state.json"
    path.write_text("old")
    path.chmod(0o644)

    write_atomic(path, "näw", mode=0o600)

    assert (path.read_bytes(), path.stat().st_mode & 0o777) == ("näw".encode(), 0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_file_can_keep_the_permissions_and_attributes_of_the_one_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owner and group too, which only root may change to another account."""
    path = tmp_path / "hosts.yaml"
    owners: list[tuple[int, int]] = []
    path.write_text("old")
    path.chmod(0o640)
    monkeypatch.setattr(os, "chown", lambda _path, uid, gid: owners.append((uid, gid)))

    write_atomic(path, "new", like=path)

    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    assert owners == [(path.stat().st_uid, path.stat().st_gid)]


def test_a_file_for_another_account_gets_its_owner_before_its_content_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By descriptor: an account that owns the folder could replace the temporary file by a link."""
    path = tmp_path / "redis.conf"
    path.symlink_to(tmp_path / "other")
    calls: list[tuple[bool, int, int, bool]] = []
    monkeypatch.setattr(os, "fchown", lambda file, uid, gid: calls.append((isinstance(file, int), uid, gid, path.is_symlink())))

    write_owned(path, "port 0\n", mode=0o640, owner=(0, 991))

    assert calls == [(True, 0, 991, True)]
    assert (path.read_text(), path.stat().st_mode & 0o777, path.is_symlink()) == ("port 0\n", 0o640, False)


def test_without_a_mode_the_umask_decides(tmp_path: Path) -> None:
    """A file without a requested mode is created as any other program creates files."""
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", b"x")
    finally:
        os.umask(before)

    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_private_file_is_private_before_its_content_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary file of a mode 0600 never has a wider mode while it holds content."""
    modes: list[int] = []
    real = write_all

    def recording(descriptor: int, data: bytes) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o077)
        real(descriptor, data)

    monkeypatch.setattr(atomic_files, "write_all", recording)
    write_atomic(tmp_path / "a", "secret", mode=0o600)

    assert modes == [0]


@pytest.mark.parametrize("step", ["write", "fsync", "fchmod"])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A full disk raises OSError; the file is as it was, and the temporary file is removed."""
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, step, _broken_disk)

    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "a", "new", mode=0o644)

    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_file_and_folder_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content reaches the disk before its name does: the file is synced, renamed, and then the folder is synced."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink())))

    write_atomic(tmp_path / "a", "x")
    write_atomic(tmp_path / "b", "x", durable=False)

    assert [path.endswith(".tmp") for path in synced] == [True, False]
    assert synced[1] == str(tmp_path)


def test_a_file_system_that_cannot_sync_folders_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems answer EINVAL for a folder; any other error of a folder is an error."""
    codes = iter([errno.EINVAL, errno.EIO])

    def refusing(_descriptor: int) -> None:
        raise OSError(next(codes), "refused")

    monkeypatch.setattr(os, "fsync", refusing)
    atomic_files.sync_folder(tmp_path)

    with pytest.raises(OSError, match="refused"):
        atomic_files.sync_folder(tmp_path)


def test_a_file_is_created_only_once(tmp_path: Path) -> None:
    """The second writer gets FileExistsError and does not change the first one's content."""
    create_atomic(tmp_path / "claim", "first", mode=0o600)

    with pytest.raises(FileExistsError):
        create_atomic(tmp_path / "claim", "second", mode=0o600)

    assert (tmp_path / "claim").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


def test_a_file_with_the_same_content_is_not_written_again(tmp_path: Path) -> None:
    """It returns whether it wrote, keeps an unchanged file, and creates missing folders."""
    path = tmp_path / "new" / "a"
    written = [write_if_changed(path, "x")]
    number = path.stat().st_ino
    written += [write_if_changed(path, "x"), write_if_changed(path, "y")]

    assert written == [True, False, True]
    assert (path.read_text(), path.stat().st_ino == number) == ("y", False)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes three bytes at a time gets all of them."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:3]))

    write_atomic(tmp_path / "a", "0123456789")

    assert (tmp_path / "a").read_text() == "0123456789"
