"""`safe_files`: what root's programs may open, read, write and make on paths that users can change, and how long they wait."""

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
    """Its path, owner and mode are told."""
    tmp_path.chmod(0o750)
    with open_folder(tmp_path, owner=ME) as opened:
        assert (opened.path, opened.owner, opened.mode) == (str(tmp_path), ME, 0o750)


@pytest.mark.parametrize("path", ["relative", "/srv/../etc", ""])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    """Only absolute paths without a way up."""
    with pytest.raises(UnsafePathError, match="is not an absolute path"):
        open_folder(path)


def test_a_link_on_the_way_or_at_the_end_is_refused_by_name(tmp_path: Path) -> None:
    """Also where it leads to a folder of the same owner."""
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path / "link" / "below"):
        with pytest.raises(UnsafePathError, match=r"link: is a symbolic link owned by uid") as error:
            open_folder(path)
        assert error.value.path == str(tmp_path / "link")


def test_what_is_no_folder_or_not_there_is_told_apart(tmp_path: Path) -> None:
    """A file is refused by what it is; nothing is FileNotFoundError, which a caller may wait for."""
    (tmp_path / "file").touch()
    with pytest.raises(UnsafePathError, match="is a regular file"):
        open_folder(tmp_path / "file" / "x")
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "nothing" / "x")


def test_what_is_missing_is_made_only_where_that_is_asked(tmp_path: Path) -> None:
    """An existing folder on the way keeps its mode."""
    (tmp_path / "a").mkdir(mode=0o700)
    with open_folder(tmp_path / "a" / "b" / "c", create=True) as opened:
        assert opened.path == str(tmp_path / "a" / "b" / "c")

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o775, True), (0o1777, False), (0o755, False)])
def test_others_must_not_be_able_to_replace_what_is_opened(tmp_path: Path, mode: int, *, refused: bool) -> None:
    """A parent that others may write is refused unless it is sticky."""
    (tmp_path / "parent" / "here").mkdir(parents=True)
    (tmp_path / "parent").chmod(mode)
    try:
        open_folder(tmp_path / "parent" / "here").close()
        problem = ""
    except UnsafePathError as error:
        problem = error.problem

    assert ("others can replace its entries" in problem) == refused


@root_only
def test_a_parent_of_another_account_is_refused_unless_it_is_the_stated_one(tmp_path: Path) -> None:
    """A user's own folder lies below folders of that user or of root."""
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


def test_no_descriptor_is_left_open_where_it_is_refused(tmp_path: Path) -> None:
    """A service that looks every few seconds must not run out of them."""
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
    """As a whole, whoever of the stated accounts owns it."""
    assert folder.read("file") == b"content"
    assert folder.read("file", owner=ME) == b"content"
    assert folder.read("file", owner=(OTHER, ME)) == b"content"


def test_a_file_of_another_account_is_refused(folder: Folder) -> None:
    """Both numbers are named."""
    with pytest.raises(UnsafePathError, match=f"uid {ME}, not by 4242 or 4243"):
        folder.read("file", owner=(OTHER, OTHER + 1))


def test_a_file_that_is_too_large_is_refused_not_cut(folder: Folder) -> None:
    """The limit itself is allowed."""
    assert folder.read("file", max_bytes=7) == b"content"
    with pytest.raises(UnsafePathError, match="larger than 6 bytes"):
        folder.read("file", max_bytes=6)


def test_what_is_no_regular_file_is_refused_at_once(folder: Folder, tmp_path: Path) -> None:
    """A link, a folder, a named pipe without a writer and a socket; none is opened for long, and none followed."""
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
    """Nothing that leads out of the folder, for any method."""
    for act in (folder.read, folder.folder, folder.stat, folder.remove):
        with pytest.raises(UnsafePathError, match="is not a file name"):
            act(name)
    with pytest.raises(UnsafePathError, match="is not a file name"):
        folder.write(name, b"", mode=0o600)
    with pytest.raises(UnsafePathError, match="is not a file name"):
        folder.make_folder(name, owner=ME, group=MY_GROUP, mode=0o700)


def test_names_are_sorted_and_bounded(folder: Folder, tmp_path: Path) -> None:
    """A folder with more entries than the limit is refused."""
    (tmp_path / "a").touch()

    assert folder.names() == ["a", "file"]
    with pytest.raises(UnsafePathError, match="more than 1 entries"):
        folder.names(limit=1)


def test_files_by_path_are_read_only_where_they_are_regular(tmp_path: Path) -> None:
    """A whole file, and the end of one; a link and a pipe are refused."""
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


def test_a_write_replaces_what_lies_there(folder: Folder, tmp_path: Path) -> None:
    """A link is replaced, not followed; no temporary file is left."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    folder.write("link", b"fresh", mode=0o640)

    assert (tmp_path / "link").read_bytes() == b"fresh"
    assert stat.S_IMODE((tmp_path / "link").lstat().st_mode) == 0o640
    assert (tmp_path / "file").read_bytes() == b"content"
    assert folder.names() == ["file", "link"]


def test_a_write_that_fails_leaves_nothing(folder: Folder, tmp_path: Path) -> None:
    """A folder of that name cannot be replaced: the temporary file goes, the folder stays."""
    (tmp_path / "sub").mkdir()
    with pytest.raises(OSError, match="directory"):
        folder.write("sub", b"x", mode=0o600)

    assert folder.names() == ["file", "sub"]


def test_a_link_is_removed_itself(folder: Folder, tmp_path: Path) -> None:
    """Its target stays, and a second removal is no error."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    folder.remove("link")
    folder.remove("link")

    assert folder.names() == ["file"]


def test_a_folder_is_made_with_all_its_bits_and_then_left_alone(folder: Folder, tmp_path: Path) -> None:
    """Whatever the umask is; the second time nothing differs."""
    made = [folder.make_folder("shared", owner=ME, group=MY_GROUP, mode=0o3775) for _ in range(2)]

    assert made == [True, False]
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o3775


def test_a_look_makes_and_changes_nothing(folder: Folder, tmp_path: Path) -> None:
    """It tells what differs."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found = [folder.make_folder(name, owner=ME, group=MY_GROUP, mode=0o700, check=True) for name in ("new", "open")]

    assert found == [True, True]
    assert folder.names() == ["file", "open"]
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o777


@root_only
def test_a_folder_of_another_account_is_taken_over_only_where_that_is_asked(folder: Folder, tmp_path: Path) -> None:
    """It is refused by name otherwise, and keeps its owner."""
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", OTHER, -1)
    with pytest.raises(UnsafePathError, match="uid 4242, not by 0"):
        folder.make_folder("theirs", owner=0, group=0, mode=0o755)
    refused = (tmp_path / "theirs").stat().st_uid
    folder.make_folder("theirs", owner=0, group=0, mode=0o755, adopt=True)

    assert (refused, (tmp_path / "theirs").stat().st_uid) == (OTHER, 0)


def test_a_link_is_never_given_a_mode(folder: Folder, tmp_path: Path) -> None:
    """Attack 1: the folder that it leads to keeps its own, also where one may be adopted."""
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "jobs").symlink_to(tmp_path / "target")
    with pytest.raises(UnsafePathError, match="a symbolic link"):
        folder.make_folder("jobs", owner=ME, group=MY_GROUP, mode=0o1777, adopt=True)

    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o700


# --- Time ---


def test_a_refusal_can_be_pickled() -> None:
    """`within` hands it from the child to the parent."""
    again = pickle.loads(pickle.dumps(UnsafePathError("/x", "is a link")))  # noqa: S301 - made here

    assert (again.path, again.problem, str(again)) == ("/x", "is a link", "/x: is a link")


def test_every_kind_has_a_name() -> None:
    """What is refused is named."""
    assert safe_files.kind(stat.S_IFBLK) == "a device"
    assert safe_files.kind(0) == "of an unknown kind"


def test_a_lock_is_only_for_those_who_own_it(tmp_path: Path) -> None:
    """Whoever can open it may hold it: one that an earlier release left readable is closed, and no link is followed."""
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
