"""primus_bootstrap.launch.safe_files: opening, reading and writing paths that users can change."""

from __future__ import annotations

import os
import pickle
import socket
import stat
import time
from pathlib import Path

import pytest

from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.safe_files import Folder, UnsafePathError, open_folder, read_regular, read_tail

ME, MY_GROUP = os.geteuid(), os.getegid()
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other accounts")
OTHER = 4242


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return an open folder with a file."""
    (tmp_path / "file").write_bytes(b"content")
    return open_folder(tmp_path)


# --- Opening ---


def test_a_folder_is_opened_by_its_absolute_path(tmp_path: Path) -> None:
    """It has path, owner and mode."""
    tmp_path.chmod(0o750)
    with open_folder(tmp_path, owner=ME) as opened:
        assert (opened.path, opened.owner, opened.mode) == (str(tmp_path), ME, 0o750)


@pytest.mark.parametrize("path", ["relative", "/srv/../etc", ""])
def test_relative_paths_are_errors(path: str) -> None:
    """Also paths with `..`."""
    with pytest.raises(UnsafePathError, match="is not an absolute path"):
        open_folder(path)


def test_a_link_in_a_path_is_an_error(tmp_path: Path) -> None:
    """Also if its target has the same owner; the message names the link."""
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path / "link" / "below"):
        with pytest.raises(UnsafePathError, match=r"link: is a symbolic link owned by uid") as error:
            open_folder(path)
        assert error.value.path == str(tmp_path / "link")


def test_a_file_and_a_missing_folder_give_different_errors(tmp_path: Path) -> None:
    """A missing folder is a FileNotFoundError, so that a caller can wait for it."""
    (tmp_path / "file").touch()
    with pytest.raises(UnsafePathError, match="is a regular file"):
        open_folder(tmp_path / "file" / "x")
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "nothing" / "x")


def test_missing_folders_are_created_only_on_request(tmp_path: Path) -> None:
    """Existing folders keep their mode."""
    (tmp_path / "a").mkdir(mode=0o700)
    with open_folder(tmp_path / "a" / "b" / "c", create=True) as opened:
        assert opened.path == str(tmp_path / "a" / "b" / "c")

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o775, True), (0o1777, False), (0o755, False)])
def test_a_parent_writable_for_others_is_an_error(tmp_path: Path, mode: int, *, refused: bool) -> None:
    """Unless it is sticky."""
    (tmp_path / "parent" / "here").mkdir(parents=True)
    (tmp_path / "parent").chmod(mode)
    try:
        open_folder(tmp_path / "parent" / "here").close()
        problem = ""
    except UnsafePathError as error:
        problem = error.problem

    assert ("others can replace its entries" in problem) == refused


@root_only
def test_a_parent_of_another_account_is_an_error(tmp_path: Path) -> None:
    """Folders above must belong to root or to the given owner."""
    (tmp_path / "user" / "job").mkdir(parents=True)
    os.chown(tmp_path / "user", OTHER, -1)
    os.chown(tmp_path / "user" / "job", OTHER, -1)
    with pytest.raises(UnsafePathError, match="owned by uid 4242, who can replace its entries; only root"):
        open_folder(tmp_path / "user" / "job")
    with open_folder(tmp_path / "user" / "job", owner=OTHER) as opened:
        assert opened.owner == OTHER
    os.chown(tmp_path / "user" / "job", 0, -1)
    with pytest.raises(UnsafePathError, match="uid 0, not by 4242"):
        open_folder(tmp_path / "user" / "job", owner=OTHER)


def test_errors_leave_no_open_descriptor(tmp_path: Path) -> None:
    """A service that polls must not run out of descriptors."""
    (tmp_path / "link").symlink_to("/")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (tmp_path / "link" / "x", tmp_path / "no" / "x"):
        with pytest.raises(OSError, match=r"link|No such"):
            open_folder(path)
    with Folder(os.open(tmp_path, os.O_RDONLY), str(tmp_path)) as folder:
        (tmp_path / "sub").mkdir()
        for name in ("sub", "link"):
            with pytest.raises(UnsafePathError):
                folder.read(name)

    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- Reading ---


def test_a_regular_file_is_read(folder: Folder) -> None:
    """Any of the given owners is accepted."""
    assert folder.read("file") == b"content"
    assert folder.read("file", owner=ME) == b"content"
    assert folder.read("file", owner=(OTHER, ME)) == b"content"


def test_a_file_of_another_account_is_an_error(folder: Folder) -> None:
    """The message has both uids."""
    with pytest.raises(UnsafePathError, match=f"uid {ME}, not by 4242 or 4243"):
        folder.read("file", owner=(OTHER, OTHER + 1))


def test_a_file_above_the_limit_is_an_error(folder: Folder) -> None:
    """The limit itself is allowed."""
    assert folder.read("file", max_bytes=7) == b"content"
    with pytest.raises(UnsafePathError, match="larger than 6 bytes"):
        folder.read("file", max_bytes=6)


def test_other_file_types_are_errors(folder: Folder, tmp_path: Path) -> None:
    """Links, folders, named pipes and sockets; none blocks or is followed."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    here = os.open(tmp_path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/socket")
    os.close(here)
    found = {}
    started = time.monotonic()
    for name in ("link", "sub", "pipe", "socket"):
        with pytest.raises(UnsafePathError) as error:
            folder.read(name)
        found[name] = error.value.problem

    assert "a symbolic link" in found["link"]
    assert "a folder" in found["sub"]
    assert "a named pipe" in found["pipe"]
    assert "a socket" in found["socket"]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_is_one_component(folder: Folder, name: str) -> None:
    """No method can leave the folder."""
    for act in (folder.read, folder.folder, folder.stat, folder.remove):
        with pytest.raises(UnsafePathError, match="is not a file name"):
            act(name)
    with pytest.raises(UnsafePathError, match="is not a file name"):
        folder.write(name, b"", mode=0o600)
    with pytest.raises(UnsafePathError, match="is not a file name"):
        folder.make_folder(name, owner=ME, group=MY_GROUP, mode=0o700)


def test_names_are_sorted_and_limited(folder: Folder, tmp_path: Path) -> None:
    """A folder with more entries than the limit is an error."""
    (tmp_path / "a").touch()

    assert folder.names() == ["a", "file"]
    with pytest.raises(UnsafePathError, match="more than 1 entries"):
        folder.names(limit=1)


def test_only_regular_files_are_read_by_path(tmp_path: Path) -> None:
    """The whole file or its end; links and pipes are errors."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")

    assert read_regular(path) == b"0123456789"
    assert (read_tail(path, 3), read_tail(path, 99)) == (b"789", b"0123456789")
    for name in ("link", "pipe"):
        with pytest.raises(UnsafePathError):
            read_regular(tmp_path / name)
        with pytest.raises(OSError, match=r"symbolic links|named pipe"):
            read_tail(tmp_path / name, 3)


# --- Writing ---


def test_a_write_replaces_a_file_or_link(folder: Folder, tmp_path: Path) -> None:
    """A link is not followed; no temporary file remains."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    folder.write("link", b"fresh", mode=0o640)

    assert (tmp_path / "link").read_bytes() == b"fresh"
    assert stat.S_IMODE((tmp_path / "link").lstat().st_mode) == 0o640
    assert (tmp_path / "file").read_bytes() == b"content"
    assert folder.names() == ["file", "link"]


def test_a_failed_write_leaves_no_temporary_file(folder: Folder, tmp_path: Path) -> None:
    """A folder of that name cannot be replaced."""
    (tmp_path / "sub").mkdir()
    with pytest.raises(OSError, match="directory"):
        folder.write("sub", b"x", mode=0o600)

    assert folder.names() == ["file", "sub"]


def test_a_link_is_removed_without_its_target(folder: Folder, tmp_path: Path) -> None:
    """A second removal is not an error."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    folder.remove("link")
    folder.remove("link")

    assert folder.names() == ["file"]


def test_a_folder_is_created_once_with_its_mode(folder: Folder, tmp_path: Path) -> None:
    """The umask has no effect; the second call changes nothing."""
    made = [folder.make_folder("shared", owner=ME, group=MY_GROUP, mode=0o3775) for _ in range(2)]

    assert made == [True, False]
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o3775


def test_check_changes_nothing(folder: Folder, tmp_path: Path) -> None:
    """It returns whether anything differs."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found = [folder.make_folder(name, owner=ME, group=MY_GROUP, mode=0o700, check=True) for name in ("new", "open")]

    assert found == [True, True]
    assert folder.names() == ["file", "open"]
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o777


@root_only
def test_a_folder_of_another_account_is_adopted_only_on_request(folder: Folder, tmp_path: Path) -> None:
    """Otherwise it is an error, and the owner stays."""
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", OTHER, -1)
    with pytest.raises(UnsafePathError, match="uid 4242, not by 0"):
        folder.make_folder("theirs", owner=0, group=0, mode=0o755)
    refused = (tmp_path / "theirs").stat().st_uid
    folder.make_folder("theirs", owner=0, group=0, mode=0o755, adopt=True)

    assert (refused, (tmp_path / "theirs").stat().st_uid) == (OTHER, 0)


def test_a_link_does_not_change_its_target(folder: Folder, tmp_path: Path) -> None:
    """Attack 1: the target folder keeps its mode, also with adopt."""
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "jobs").symlink_to(tmp_path / "target")
    with pytest.raises(UnsafePathError, match="a symbolic link"):
        folder.make_folder("jobs", owner=ME, group=MY_GROUP, mode=0o1777, adopt=True)

    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o700


# --- Time ---


def test_the_error_can_be_pickled() -> None:
    """`within` passes it from the child to the parent."""
    again = pickle.loads(pickle.dumps(UnsafePathError("/x", "is a link")))  # noqa: S301 - made here

    assert (again.path, again.problem, str(again)) == ("/x", "is a link", "/x: is a link")


def test_every_file_type_has_a_name() -> None:
    """For messages."""
    assert safe_files.kind(stat.S_IFBLK) == "a device"
    assert safe_files.kind(0) == "of an unknown kind"


def test_only_the_owner_can_open_a_lock(tmp_path: Path) -> None:
    """Another account could hold the lock. The mode of an older lock file is corrected, and links are not followed."""
    lock, other = tmp_path / "lock", tmp_path / "other"
    lock.write_text("")
    lock.chmod(0o644)
    other.write_text("kept")
    (tmp_path / "link").symlink_to(other)
    safe_files.open_lock(lock).close()
    safe_files.open_lock(tmp_path / "new").close()
    with pytest.raises(OSError, match="link"):
        safe_files.open_lock(tmp_path / "link")

    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("lock", "new")] == [0o600, 0o600]
    assert other.read_text() == "kept"
