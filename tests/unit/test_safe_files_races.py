"""Races against safe_files: the owner of a path replaces it at the worst moment, and root must never use the target of the link.

The replacement is injected: a wrapped system call replaces the file or folder right before or after it runs, so each test hits the critical
moment every time. One test of the unit tests runs a real race with a limited number of attempts.
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

# The attacker and the victim: accounts of every system.
ADA, BOB = pwd.getpwnam("daemon"), pwd.getpwnam("nobody")
JOB = "small-0a1b2c"
TRIES = 500


class Switch:
    """Runs a callback once, right before or after the first call of a function of `os` with a given name."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], object], *, name: str = "", after: bool = False
    ) -> None:
        """Wrap `os.<function>`; `name` is the first argument of the call, any if empty."""
        self.original, self.act, self.name, self.after, self.done = getattr(os, function), act, name, after, False
        monkeypatch.setattr(os, function, self)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Call the function, and the callback at its time."""
        due = not self.done and (not self.name or arguments[0] == self.name)
        self.done = self.done or due
        if due and not self.after:
            self.act()
        result = self.original(*arguments, **more)
        if due and self.after:
            self.act()
        return result


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """Return a user's folder with a file, and next to it a file that only root may change."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "file").write_text("of the user")
    (tmp_path / "secret").mkdir(mode=0o700)
    (tmp_path / "secret" / "file").write_text("of root")
    return tmp_path


def opened(path: Path) -> Folder:
    """Open a folder like a program that has checked the folders above."""
    return Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))


def replace_by_link(path: Path, target: Path) -> None:
    """Move a path away and create a link in its place, which its owner can always do."""
    path.rename(path.with_name(f"{path.name}-aside"))
    path.symlink_to(target)


def test_a_link_created_before_the_open_is_an_error(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of root's file is read."""
    path = user_folder / "user" / "file"
    switch = Switch(monkeypatch, "open", lambda: replace_by_link(path, user_folder / "secret" / "file"), name="file")
    with opened(user_folder / "user") as folder, pytest.raises(UnsafePathError, match="symbolic link"):
        folder.read("file")

    assert switch.done


def test_a_link_created_after_the_open_has_no_effect(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owner and content are those of the opened file."""
    path = user_folder / "user" / "file"
    with opened(user_folder / "user") as folder:
        switch = Switch(monkeypatch, "fstat", lambda: replace_by_link(path, user_folder / "secret" / "file"))
        content = folder.read("file", owner=os.geteuid())

    assert switch.done
    assert content == b"of the user"


def test_a_pipe_created_before_the_open_does_not_block(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named pipe without a writer is an error at once."""
    path = user_folder / "user" / "file"

    def switch_to_pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    Switch(monkeypatch, "open", switch_to_pipe, name="file")
    with opened(user_folder / "user") as folder, pytest.raises(UnsafePathError, match="named pipe"):
        folder.read("file")


def test_a_folder_that_becomes_a_link_is_an_error(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The component is replaced after the folders above were checked; `open_folder` names it."""
    Switch(monkeypatch, "open", lambda: replace_by_link(user_folder / "user", user_folder / "secret"), name="user")
    with pytest.raises(UnsafePathError, match=r"user: is a symbolic link"):
        open_folder(user_folder / "user", owner=os.geteuid())


def test_a_folder_replaced_after_the_open_has_no_effect(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes use the opened folder."""
    with opened(user_folder / "user") as folder:
        switch = Switch(monkeypatch, "open", lambda: replace_by_link(user_folder / "user", user_folder / "secret"), name="file")
        content = folder.read("file")
        folder.write("new", b"x", mode=0o600)

    assert switch.done
    assert content == b"of the user"
    assert sorted(path.name for path in (user_folder / "secret").iterdir()) == ["file"]
    assert (user_folder / "user-aside" / "new").read_bytes() == b"x"


def test_a_write_does_not_follow_a_link_created_before_the_rename(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is replaced; root's file keeps content and mode."""
    path = user_folder / "user" / "file"
    Switch(monkeypatch, "rename", lambda: replace_by_link(path, user_folder / "secret" / "file"))
    with opened(user_folder / "user") as folder:
        folder.write("file", b"fresh", mode=0o666)

    assert (user_folder / "secret" / "file").read_text() == "of root"
    assert stat.S_IMODE((user_folder / "secret" / "file").stat().st_mode) & 0o022 == 0
    assert path.read_bytes() == b"fresh"
    assert not path.is_symlink()


@pytest.mark.parametrize(("function", "refused"), [("open", True), ("fchmod", False)])
def test_a_mode_is_never_set_through_a_link(user_folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, *, refused: bool) -> None:
    """Attack 1: the folder becomes a link before the open (an error) or before its mode is set (only the opened folder changes)."""
    (user_folder / "user" / "jobs").mkdir(mode=0o755)
    switch = Switch(
        monkeypatch,
        function,
        lambda: replace_by_link(user_folder / "user" / "jobs", user_folder / "secret"),
        name="jobs" if function == "open" else "",
    )
    with opened(user_folder / "user") as folder:
        if refused:
            with pytest.raises(UnsafePathError, match="symbolic link"):
                folder.make_folder("jobs", owner=os.geteuid(), group=os.getegid(), mode=0o1777)
        else:
            folder.make_folder("jobs", owner=os.geteuid(), group=os.getegid(), mode=0o1777)

    assert switch.done
    assert stat.S_IMODE((user_folder / "secret").stat().st_mode) == 0o700


def test_a_real_race_never_reads_the_target(user_folder: Path) -> None:
    """While a thread swaps a file and a link, each read returns the user's file or is an error."""
    user, going = user_folder / "user", threading.Event()
    (user / "link").symlink_to(user_folder / "secret" / "file")

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
    """Create a folder of jobs with one of the attacker, and elsewhere a job of the victim."""
    # Other accounts cannot enter pytest's folder, and the replacement runs as the attacker.
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
