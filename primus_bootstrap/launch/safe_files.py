"""Reads and writes below folders that users can change, for programs that run as root.

A path is only a question: between a check and a read its owner can put a symbolic link in its place. This module opens a folder once,
without following links, and does everything else relative to that descriptor. Every read checks what was opened: a regular file, the
expected owner, at most so many bytes. `within` bounds the time: a named pipe or storage that hangs must not hold a root process.

Standard library and Python 3.9 only. Programs on nodes and Ansible modules use copies or links of this one file.
"""

from __future__ import annotations

import os
import pickle
import secrets
import select
import signal
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_BYTES = 1 << 20
MAX_NAMES = 10_000
TIMEOUT_S = 10.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a named pipe without a writer would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISREG, "a regular file"),
)


class UnsafePathError(OSError):
    """Something at a path is not what root may use; `path` says where and `problem` what."""

    def __init__(self, path: str, problem: str) -> None:
        """Keep both parts, and show them as one line."""
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[type[UnsafePathError], tuple[str, str]]:
        """Let `within` pass it from one process to the other."""
        return UnsafePathError, (self.path, self.problem)


class Folder:
    """An open folder. Names are single path components; no method follows a symbolic link."""

    def __init__(self, descriptor: int, path: str) -> None:
        """Take over a descriptor; `path` is for messages only."""
        self.descriptor, self.path = descriptor, path

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def __enter__(self) -> Folder:  # noqa: PYI034 - typing.Self is newer than Python 3.9
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptor."""
        self.close()

    @property
    def owner(self) -> int:
        """The number of the account that owns the folder that was opened."""
        return os.fstat(self.descriptor).st_uid

    @property
    def mode(self) -> int:
        """The permission bits of the folder that was opened."""
        return stat.S_IMODE(os.fstat(self.descriptor).st_mode)

    def check_parent(self) -> None:
        """Make sure that only root can replace what lies in the folder.

        Raises:
            UnsafePathError: Another account owns it, or it is writable for others and not sticky.
        """
        _check_parent(self.path or "/", os.fstat(self.descriptor), {0})

    def stat(self, name: str) -> os.stat_result:
        """Return what lies there itself; a link is a link."""
        return os.stat(_component(name, self.path), dir_fd=self.descriptor, follow_symlinks=False)

    def names(self, *, limit: int = MAX_NAMES) -> list[str]:
        """Return the sorted names of what lies in the folder.

        Raises:
            UnsafePathError: There are more than `limit`.
        """
        found = []
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) > limit:
                    raise UnsafePathError(self.path, f"holds more than {limit} entries")
        return sorted(found)

    def folder(self, name: str, *, owner: int | None = None) -> Folder:
        """Open a folder in this one.

        Raises:
            UnsafePathError: It is something else, or another account owns it.
            FileNotFoundError: There is nothing.
        """
        path = f"{self.path}/{name}"
        try:
            descriptor = os.open(_component(name, self.path), _FOLDER, dir_fd=self.descriptor)
        except NotADirectoryError as error:
            raise self._is_not(name, "a folder") from error
        except OSError as error:
            # Linux answers ELOOP or ENOTDIR for a link, which depends on the file system.
            if isinstance(error, FileNotFoundError):
                raise
            raise self._is_not(name, "a folder") from error
        opened = Folder(descriptor, path)
        try:
            _check_owner(path, os.fstat(descriptor), owner)
        except UnsafePathError:
            opened.close()
            raise
        return opened

    def read(self, name: str, *, owner: int | Sequence[int] | None = None, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the content of a regular file.

        Args:
            name: of a file in this folder.
            owner: the account, or the accounts, that may own it; None takes any.
            max_bytes: a larger file is refused, not cut.

        Raises:
            UnsafePathError: It is no regular file, another account owns it, or it is too large.
            FileNotFoundError: There is nothing.
        """
        path = f"{self.path}/{name}"
        try:
            descriptor = os.open(_component(name, self.path), _FILE, dir_fd=self.descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._is_not(name, "a regular file") from error
        found = _regular(path, descriptor)
        with os.fdopen(descriptor, "rb") as file:
            _check_owner(path, found, owner)
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise UnsafePathError(path, f"is larger than {max_bytes} bytes")
        return content

    def write(self, name: str, content: bytes, *, mode: int, owner: int = -1, group: int = -1) -> None:
        """Replace a file as a whole: a new file is written, synced and renamed over whatever lies there."""
        temporary = f".{_component(name, self.path)}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchown(descriptor, owner, group)
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self.descriptor)
            raise
        os.fsync(self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a link itself; nothing happens where there is none."""
        with suppress(FileNotFoundError):
            os.unlink(_component(name, self.path), dir_fd=self.descriptor)

    def make_folder(  # noqa: PLR0913 - a name, what the folder is to be, and the two ways to be careful
        self, name: str, *, owner: int, group: int, mode: int, adopt: bool = False, check: bool = False
    ) -> bool:
        """Make a folder, or correct the owner, group and mode of the one that is there; return whether anything differs.

        Args:
            name: of a folder in this one.
            owner: number of the account that is to own it.
            group: number of the group that is to own it.
            mode: its permission bits.
            adopt: take a folder of another account over; otherwise it is refused by name.
            check: change nothing.

        Raises:
            UnsafePathError: Something else lies there, or a folder of another account.
        """
        made = False
        if not check:
            with suppress(FileExistsError):
                os.mkdir(_component(name, self.path), 0o700, dir_fd=self.descriptor)
                made = True
        try:
            opened = self.folder(name)
        except FileNotFoundError:
            return True
        with opened:
            found = os.fstat(opened.descriptor)
            if found.st_uid not in (owner, 0) and not adopt:
                raise UnsafePathError(opened.path, f"belongs to the account number {found.st_uid}, not to {owner}")
            differs = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (owner, group, mode)
            if differs and not check:
                # The mode first: a folder must not be writable for a new owner's group before that is meant.
                os.fchmod(opened.descriptor, mode & ~0o7000)
                os.fchown(opened.descriptor, owner, group)
                os.fchmod(opened.descriptor, mode)
            return made or differs

    def _is_not(self, name: str, wanted: str) -> UnsafePathError:
        path = f"{self.path}/{name}"
        try:
            found = self.stat(name)
        except OSError as error:
            return UnsafePathError(path, f"cannot be opened: {error.strerror or error}")
        here = kind(found.st_mode)
        if here == wanted:
            return UnsafePathError(path, "cannot be opened: permission denied")
        return UnsafePathError(path, f"is {here} of the account number {found.st_uid}, not {wanted}")


def kind(mode: int) -> str:
    """Return what a file is, from its mode."""
    return next((name for test, name in _KINDS if test(mode)), "of an unknown kind")


def open_folder(path: str | Path, *, owner: int | None = None, create: bool = False) -> Folder:
    """Open a folder by its absolute path, one component after the other, none of them a symbolic link.

    Every folder above it must be one that only root can change: owned by root, and not writable for others unless it is sticky. So nobody
    but root can put another folder in its place later, and its path may be handed to other programs.

    Args:
        path: an absolute path.
        owner: the account that must own the folder itself; None takes any. Folders above may belong to it as well.
        create: make what is missing, with mode 0755 and owned by whoever runs this.

    Raises:
        UnsafePathError: Something on the way is a link or no folder, or others can replace it.
        FileNotFoundError: A component is missing.
    """
    whole = Path(path)
    if not whole.is_absolute() or ".." in whole.parts:
        raise UnsafePathError(str(path), "is no absolute path")
    trusted = {0} if owner is None else {0, owner}
    here = Folder(os.open("/", _FOLDER), "")
    try:
        for name in whole.parts[1:]:
            found = os.fstat(here.descriptor)
            _check_parent(here.path or "/", found, trusted)
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=here.descriptor)
            below = here.folder(name)
            here.close()
            here = below
        _check_owner(str(whole), os.fstat(here.descriptor), owner)
    except BaseException:
        here.close()
        raise
    here.path = str(whole)
    return here


def read_regular(path: str | Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file by its path; for programs that run with the rights of whoever owns it.

    A named pipe, a device or a link in its place is refused at once instead of waited for or followed.

    Raises:
        UnsafePathError: It is no regular file, or too large.
        FileNotFoundError: There is nothing.
    """
    whole = Path(path)
    descriptor = os.open(whole.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with Folder(descriptor, str(whole.parent)) as folder:
        return folder.read(whole.name, max_bytes=max_bytes)


def open_lock(path: str | Path) -> BinaryIO:
    """Open the file of a lock, for `fcntl.flock`, and make it where it is missing. Nobody else can open it: whoever can may hold it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "r+b")


def read_tail(path: str | Path, count: int) -> bytes:
    """Return the last bytes of a regular file by its path, at most `count`; see `read_regular`."""
    descriptor = os.open(path, _FILE)
    found = _regular(str(path), descriptor)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, found.st_size - count))
        return file.read(count)


def _regular(path: str, descriptor: int) -> os.stat_result:
    """Return the facts of what was opened; close it where it is no regular file."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise UnsafePathError(path, f"is {kind(found.st_mode)}, not a regular file")
    return found


def _check_parent(path: str, found: os.stat_result, trusted: set[int]) -> None:
    if found.st_uid not in trusted:
        raise UnsafePathError(path, f"belongs to the account number {found.st_uid}; only root may be able to replace what lies in it")
    if found.st_mode & _OTHERS_MAY_WRITE and not found.st_mode & stat.S_ISVTX:
        raise UnsafePathError(path, f"has mode {stat.S_IMODE(found.st_mode):04o}: others can replace what lies in it")


def _check_owner(path: str, found: os.stat_result, owner: int | Sequence[int] | None) -> None:
    wanted = (owner,) if isinstance(owner, int) else owner
    if wanted is not None and found.st_uid not in wanted:
        raise UnsafePathError(path, f"belongs to the account number {found.st_uid}, not to {' or '.join(map(str, wanted))}")


def _component(name: str, where: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise UnsafePathError(where, f"{name!r} is no name of a file")
    return name


def within(timeout_s: float, call: Callable[[], Any], *, become: tuple[int, int] | None = None) -> Any:
    """Call a function in a process of its own and return what it returns.

    A process that waits for storage does not notice a signal handler; a process that is killed lets its caller go on. Only for callers
    with one thread: the child is a copy of this process.

    Args:
        timeout_s: seconds; the child is killed afterwards.
        call: the function; what it returns or raises must be picklable.
        become: user and group number that the child takes first, without supplementary groups.

    Raises:
        TimeoutError: It did not end in time.
        Exception: Whatever the function raised.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, call, become)
    os.close(writing)
    try:
        answer = _receive(reading, timeout_s)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _reap(child)
    if answer is None:
        raise TimeoutError(f"no answer within {timeout_s:.0f} s")
    good, value = pickle.loads(answer)  # noqa: S301 - our own child wrote it
    if good:
        return value
    raise value


def _answer(writing: int, call: Callable[[], Any], become: tuple[int, int] | None) -> NoReturn:
    try:
        try:
            if become is not None and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(become[1], become[1], become[1])
                os.setresuid(become[0], become[0], become[0])
            answer = pickle.dumps((True, call()))
        except Exception as error:  # noqa: BLE001 - it is raised again in the parent
            try:
                answer = pickle.dumps((False, error))
            except Exception:  # noqa: BLE001 - an exception that cannot travel
                answer = pickle.dumps((False, OSError(str(error))))
        view = memoryview(answer)
        while view:
            view = view[os.write(writing, view) :]
    finally:
        os._exit(0)


def _receive(reading: int, timeout_s: float) -> bytes | None:
    """Read until the child closes its end; None where it does not in time, or ends without an answer."""
    taken, deadline = bytearray(), time.monotonic() + timeout_s
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(reading, 1 << 16)
        if not piece:
            return bytes(taken) or None
        taken += piece


def _reap(child: int) -> None:
    """Collect the child's end; one that even a kill does not end (storage that hangs in the kernel) is left to init."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            done, _ = os.waitpid(child, os.WNOHANG)
            if not done:
                time.sleep(0.01)
                continue
        return


@contextmanager
def trusted_folder(path: str | Path, *, owner: int | None = None, timeout_s: float = TIMEOUT_S) -> Iterator[Folder]:
    """Open a folder as `open_folder` does, once a first look has shown that its storage answers in time."""
    within(timeout_s, lambda: open_folder(path, owner=owner).close())
    with open_folder(path, owner=owner) as folder:
        yield folder
