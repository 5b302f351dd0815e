"""Read and write files below folders that users can change, for programs that run as root.

Between a check and a read, the owner of a path can replace it by a symbolic link. This module opens a folder once without following links,
and then works relative to that descriptor. Every read checks the type, owner and size of the opened file. `within` limits the time, because
hanging storage must not block a root process.

Standard library and Python 3.9 only. Programs on nodes and Ansible modules use copies or links of this file.
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
_LENGTH_BYTES = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a named pipe without a writer would block forever.
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
    """A path that root must not use, with the problem."""

    def __init__(self, path: str, problem: str) -> None:
        """Store both parts; the message is one line."""
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[type[UnsafePathError], tuple[str, str]]:
        """Support pickling, for `within`."""
        return UnsafePathError, (self.path, self.problem)


class Folder:
    """An open folder. Names are single path components; no method follows symbolic links."""

    def __init__(self, descriptor: int, path: str) -> None:
        """Take ownership of a descriptor; `path` is used in messages."""
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
        """The uid of the folder's owner."""
        return os.fstat(self.descriptor).st_uid

    @property
    def mode(self) -> int:
        """The permission bits of the folder."""
        return stat.S_IMODE(os.fstat(self.descriptor).st_mode)

    def check_parent(self) -> None:
        """Check that only root can replace entries of the folder.

        Raises:
            UnsafePathError: Another account owns the folder, or others can write to it and it is not sticky.
        """
        _check_parent(self.path or "/", os.fstat(self.descriptor), {0})

    def stat(self, name: str) -> os.stat_result:
        """Return the status of an entry; links are not followed."""
        return os.stat(_component(name, self.path), dir_fd=self.descriptor, follow_symlinks=False)

    def names(self, *, limit: int = MAX_NAMES) -> list[str]:
        """Return the sorted names of the entries.

        Raises:
            UnsafePathError: There are more than `limit`.
        """
        found = []
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) > limit:
                    raise UnsafePathError(self.path, f"contains more than {limit} entries")
        return sorted(found)

    def folder(self, name: str, *, owner: int | None = None) -> Folder:
        """Open a subfolder.

        Raises:
            UnsafePathError: It is not a folder, or another account owns it.
            FileNotFoundError: It does not exist.
        """
        path = f"{self.path}/{name}"
        try:
            descriptor = os.open(_component(name, self.path), _FOLDER, dir_fd=self.descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:  # for a link ELOOP or ENOTDIR, depending on the file system
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
            name: The name of the file.
            owner: The allowed owners (uid); None allows any.
            max_bytes: A larger file is an error; it is not truncated.

        Raises:
            UnsafePathError: It is not a regular file, another account owns it, or it is too large.
            FileNotFoundError: It does not exist.
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
        """Replace a file atomically: write and sync a new file, and rename it to the name."""
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
        """Remove a file or link, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(_component(name, self.path), dir_fd=self.descriptor)

    def make_folder(  # noqa: PLR0913 - a name, its owner, group and mode, and two options
        self, name: str, *, owner: int, group: int, mode: int, adopt: bool = False, check: bool = False
    ) -> bool:
        """Create a subfolder, or correct its owner, group and mode; return whether anything differed.

        Args:
            name: The name of the subfolder.
            owner: Its uid.
            group: Its gid.
            mode: Its permission bits.
            adopt: Accept a folder that another account owns.
            check: Change nothing.

        Raises:
            UnsafePathError: It is not a folder, or another account owns it.
        """
        created = False
        if not check:
            with suppress(FileExistsError):
                os.mkdir(_component(name, self.path), 0o700, dir_fd=self.descriptor)
                created = True
        try:
            opened = self.folder(name)
        except FileNotFoundError:
            return True
        with opened:
            found = os.fstat(opened.descriptor)
            if found.st_uid not in (owner, 0) and not adopt:
                raise UnsafePathError(opened.path, f"is owned by uid {found.st_uid}, not by {owner}")
            differs = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (owner, group, mode)
            if differs and not check:
                # Set the mode first: the new group must not get write access by the old mode.
                os.fchmod(opened.descriptor, mode & ~0o7000)
                os.fchown(opened.descriptor, owner, group)
                os.fchmod(opened.descriptor, mode)
            return created or differs

    def _is_not(self, name: str, expected: str) -> UnsafePathError:
        path = f"{self.path}/{name}"
        try:
            found = self.stat(name)
        except OSError as error:
            return UnsafePathError(path, f"cannot be opened: {error.strerror or error}")
        actual = kind(found.st_mode)
        if actual == expected:
            return UnsafePathError(path, "cannot be opened: permission denied")
        return UnsafePathError(path, f"is {actual} owned by uid {found.st_uid}, not {expected}")


def kind(mode: int) -> str:
    """Return the type of a file as text, from its mode."""
    return next((name for test, name in _KINDS if test(mode)), "of an unknown kind")


def open_folder(path: str | Path, *, owner: int | None = None, create: bool = False) -> Folder:
    """Open a folder by its absolute path, component by component, without following symbolic links.

    Every folder above must be owned by root and not writable for others unless it is sticky. Then only root can replace the folder later,
    and its path can be passed to other programs.

    Args:
        path: An absolute path.
        owner: The uid that must own the folder; folders above may also belong to it. None allows any owner.
        create: Create missing folders with mode 0755.

    Raises:
        UnsafePathError: A component is a link or not a folder, or others can replace it.
        FileNotFoundError: A component does not exist.
    """
    target = Path(path)
    if not target.is_absolute() or ".." in target.parts:
        raise UnsafePathError(str(path), "is not an absolute path")
    trusted = {0} if owner is None else {0, owner}
    folder = Folder(os.open("/", _FOLDER), "")
    try:
        for name in target.parts[1:]:
            _check_parent(folder.path or "/", os.fstat(folder.descriptor), trusted)
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder.descriptor)
            below = folder.folder(name)
            folder.close()
            folder = below
        _check_owner(str(target), os.fstat(folder.descriptor), owner)
    except BaseException:
        folder.close()
        raise
    folder.path = str(target)
    return folder


def read_regular(path: str | Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file by its path, for programs that run as the owner of the file.

    Raises:
        UnsafePathError: It is too large or not a regular file, such as a named pipe, a device or a link.
        FileNotFoundError: It does not exist.
    """
    target = Path(path)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with Folder(descriptor, str(target.parent)) as folder:
        return folder.read(target.name, max_bytes=max_bytes)


def open_lock(path: str | Path) -> BinaryIO:
    """Open a lock file for `fcntl.flock`; create it if it is missing. Only its owner can open it, and so take the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "r+b")


def read_tail(path: str | Path, count: int) -> bytes:
    """Return at most the last `count` bytes of a regular file by its path; see `read_regular`."""
    descriptor = os.open(path, _FILE)
    found = _regular(str(path), descriptor)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, found.st_size - count))
        return file.read(count)


def _regular(path: str, descriptor: int) -> os.stat_result:
    """Return the status of an open file; close it and raise if it is not a regular file."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise UnsafePathError(path, f"is {kind(found.st_mode)}, not a regular file")
    return found


def _check_parent(path: str, found: os.stat_result, trusted: set[int]) -> None:
    if found.st_uid not in trusted:
        raise UnsafePathError(path, f"is owned by uid {found.st_uid}, who can replace its entries; only root may be able to")
    if found.st_mode & _OTHERS_MAY_WRITE and not found.st_mode & stat.S_ISVTX:
        raise UnsafePathError(path, f"has mode {stat.S_IMODE(found.st_mode):04o}: others can replace its entries")


def _check_owner(path: str, found: os.stat_result, owner: int | Sequence[int] | None) -> None:
    allowed = (owner,) if isinstance(owner, int) else owner
    if allowed is not None and found.st_uid not in allowed:
        raise UnsafePathError(path, f"is owned by uid {found.st_uid}, not by {' or '.join(map(str, allowed))}")


def _component(name: str, folder: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise UnsafePathError(folder, f"{name!r} is not a file name")
    return name


def within(timeout_s: float, call: Callable[[], Any], *, become: tuple[int, int] | None = None) -> Any:
    """Call a function in a forked child with a time limit, and return its result.

    A process that waits for storage cannot run a signal handler, but its parent can continue. The caller must have one thread.

    Args:
        timeout_s: The child is killed after this many seconds.
        call: The function; its result or exception must be picklable.
        become: The uid and gid that the child takes, without supplementary groups.

    Raises:
        TimeoutError: It did not end in time, or was killed.
        Exception: The exception of the function.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, call, become)
    os.close(writer)
    try:
        answer = _receive(reader, timeout_s)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _reap(child)
    if answer is None:
        raise TimeoutError(f"no answer within {timeout_s:.0f} s")
    succeeded, value = pickle.loads(answer)  # noqa: S301 - written by the child
    if succeeded:
        return value
    raise value


def _answer(writer: int, call: Callable[[], Any], become: tuple[int, int] | None) -> NoReturn:
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
            except Exception:  # noqa: BLE001 - the exception cannot be pickled
                answer = pickle.dumps((False, OSError(str(error))))
        view = memoryview(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)
        while view:
            view = view[os.write(writer, view) :]
    finally:
        os._exit(0)


def _receive(reader: int, timeout_s: float) -> bytes | None:
    """Read until the child closes the pipe. Return None after the time limit.

    Raises:
        TimeoutError: The child ended before its answer was complete. An account can kill a child that runs as this account.
    """
    answer, deadline = bytearray(), time.monotonic() + timeout_s
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        answer += chunk
    if len(answer) < _LENGTH_BYTES or len(answer) - _LENGTH_BYTES != int.from_bytes(answer[:_LENGTH_BYTES], "big"):
        raise TimeoutError("the reading process ended before its answer was complete")
    return bytes(answer[_LENGTH_BYTES:])


def _reap(child: int) -> None:
    """Reap the child; leave it to init if it does not end after SIGKILL because it waits in the kernel for storage."""
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
    """Open a folder as `open_folder` does, after a check that its storage responds in time."""
    within(timeout_s, lambda: open_folder(path, owner=owner).close())
    with open_folder(path, owner=owner) as folder:
        yield folder
