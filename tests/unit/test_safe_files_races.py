"""Races against safe_files: the owner of a path replaces what lies there at the worst moment, and root never touches what it points to.

The switch is injected: a system call is wrapped so that it replaces the file or folder right before, or right after, it runs. So each test
hits the critical point every time. One test races for real, with a bounded number of tries.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch.safe_files import Folder, UnsafePathError, open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Two accounts that every system has, as the attacker and the victim.
ADA, BOB = pwd.getpwnam("daemon"), pwd.getpwnam("nobody")
JOB = "small-0a1b2c"
TRIES = 500


class Switch:
    """Runs something once, right before or right after the first call of a function of `os` that concerns a name."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], object], *, name: str = "", after: bool = False
    ) -> None:
        """Wrap `os.<function>`; `name` is the first argument that it waits for, any without one."""
        self.original, self.act, self.name, self.after, self.done = getattr(os, function), act, name, after, False
        monkeypatch.setattr(os, function, self)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Do what the function does, and the switch at its time."""
        due = not self.done and (not self.name or arguments[0] == self.name)
        self.done = self.done or due
        if due and not self.after:
            self.act()
        result = self.original(*arguments, **more)
        if due and self.after:
            self.act()
        return result


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder of a user with a file, and beside it what only root should touch."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "file").write_text("of the user")
    (tmp_path / "secret").mkdir(mode=0o700)
    (tmp_path / "secret" / "file").write_text("of root")
    return tmp_path


def opened(path: Path) -> Folder:
    """Open a folder as a program does that has checked the folders above."""
    return Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))


def replace_by_link(path: Path, target: Path) -> None:
    """Move what lies at a path aside, and put a link in its place: what its owner can always do."""
    path.rename(path.with_name(f"{path.name}-aside"))
    path.symlink_to(target)


def test_a_link_that_comes_before_the_open_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file becomes a link to root's right before it is opened: it is refused by name, and nothing of the target is read."""
    path = place / "user" / "file"
    switch = Switch(monkeypatch, "open", lambda: replace_by_link(path, place / "secret" / "file"), name="file")
    with opened(place / "user") as folder, pytest.raises(UnsafePathError, match="symbolic link"):
        folder.read("file")

    assert switch.done


def test_a_link_that_comes_after_the_open_changes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the open and the owner check the file becomes a link: owner and content are those of the file that was opened."""
    path = place / "user" / "file"
    with opened(place / "user") as folder:
        switch = Switch(monkeypatch, "fstat", lambda: replace_by_link(path, place / "secret" / "file"))
        content = folder.read("file", owner=os.geteuid())

    assert switch.done
    assert content == b"of the user"


def test_a_pipe_that_comes_before_the_open_holds_nobody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named pipe without a writer would block an open for ever: it is refused at once."""
    path = place / "user" / "file"

    def switch_to_pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    Switch(monkeypatch, "open", switch_to_pipe, name="file")
    with opened(place / "user") as folder, pytest.raises(UnsafePathError, match="named pipe"):
        folder.read("file")


def test_a_folder_that_becomes_a_link_on_the_way_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A component of a path becomes a link after the ones above were checked: `open_folder` ends with its name."""
    Switch(monkeypatch, "open", lambda: replace_by_link(place / "user", place / "secret"), name="user")
    with pytest.raises(UnsafePathError, match=r"user: is a symbolic link"):
        open_folder(place / "user", owner=os.geteuid())


def test_a_folder_that_is_replaced_after_it_was_opened_stays_the_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes go to the folder that was opened, wherever its name leads by then."""
    with opened(place / "user") as folder:
        switch = Switch(monkeypatch, "open", lambda: replace_by_link(place / "user", place / "secret"), name="file")
        content = folder.read("file")
        folder.write("new", b"x", mode=0o600)

    assert switch.done
    assert content == b"of the user"
    assert sorted(path.name for path in (place / "secret").iterdir()) == ["file"]
    assert (place / "user-aside" / "new").read_bytes() == b"x"


def test_a_write_does_not_follow_a_link_that_comes_before_the_rename(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's name becomes a link to a file of root's: the link is replaced, and root's file keeps content and mode."""
    path = place / "user" / "file"
    Switch(monkeypatch, "rename", lambda: replace_by_link(path, place / "secret" / "file"))
    with opened(place / "user") as folder:
        folder.write("file", b"fresh", mode=0o666)

    assert (place / "secret" / "file").read_text() == "of root"
    assert stat.S_IMODE((place / "secret" / "file").stat().st_mode) & 0o022 == 0
    assert path.read_bytes() == b"fresh"
    assert not path.is_symlink()


@pytest.mark.parametrize(("function", "refused"), [("open", True), ("fchmod", False)])
def test_a_mode_is_never_set_through_a_link(place: Path, monkeypatch: pytest.MonkeyPatch, function: str, *, refused: bool) -> None:
    """The folder becomes a link to root's before it is opened (refused), or before its mode is set (the opened one gets it): attack 1."""
    (place / "user" / "jobs").mkdir(mode=0o755)
    switch = Switch(
        monkeypatch,
        function,
        lambda: replace_by_link(place / "user" / "jobs", place / "secret"),
        name="jobs" if function == "open" else "",
    )
    with opened(place / "user") as folder:
        if refused:
            with pytest.raises(UnsafePathError, match="symbolic link"):
                folder.make_folder("jobs", owner=os.geteuid(), group=os.getegid(), mode=0o1777)
        else:
            folder.make_folder("jobs", owner=os.geteuid(), group=os.getegid(), mode=0o1777)

    assert switch.done
    assert stat.S_IMODE((place / "secret").stat().st_mode) == 0o700


def test_a_real_race_of_many_tries_never_reads_the_target(place: Path) -> None:
    """While another thread flips a file and a link as fast as it can, every read returns the user's file or is refused."""
    user, going = place / "user", threading.Event()
    (user / "link").symlink_to(place / "secret" / "file")

    def flip() -> None:
        while not going.is_set():
            for name in ("link", "real"):
                with suppress(OSError):
                    os.link(user / "file" if name == "real" else user / "link", user / ".next", follow_symlinks=False)
                    (user / ".next").rename(user / "flipped")

    flipping = threading.Thread(target=flip)
    flipping.start()
    seen = set()
    try:
        with opened(user) as folder:
            for _ in range(TRIES):
                try:
                    seen.add(folder.read("flipped").decode())
                except (UnsafePathError, FileNotFoundError):
                    seen.add("refused")
    finally:
        going.set()
        flipping.join()

    assert seen <= {"of the user", "refused"}


@pytest.fixture
def jobs() -> Iterator[Path]:
    """Give the folder of all jobs with one of the attacker's, and a folder of the victim's elsewhere with a job of his."""
    # pytest's own folder is closed to other accounts, and the switch happens with the attacker's rights.
    top = Path(tempfile.mkdtemp(prefix="primus-test-"))
    top.chmod(0o755)
    for folder, owner in (("jobs", ADA), ("planted", BOB)):
        path = top / folder / JOB
        path.mkdir(parents=True)
        (path / "key").write_text(f"key of {owner.pw_name}")
        (path / "job.json").write_text(owner.pw_name)
        for each in (path / "key", path / "job.json", path):
            os.chown(each, owner.pw_uid, owner.pw_gid)
            each.chmod(0o700 if each == path else 0o600)
    yield top / "jobs"
    shutil.rmtree(top)
