"""Replace paths in /tmp that JuiceFS uses by files or folders of root, even if another account created them.

    juicefs_claim.py folder PATH | file PATH ...

Every account can create a path in /tmp first, and again at the moment when it is removed. So the program creates its own entry and
exchanges both atomically (renameat2). Afterwards only root can replace the path, because /tmp is sticky. The file contains an empty state
as JuiceFS writes it (NextFh is its first handle), so that JuiceFS reads it and continues.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_EXCHANGE = 2  # RENAME_EXCHANGE: linux/fs.h
_DETACH_NO_LINK = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW: sys/mount.h
_STATE = b'{"Handler":{},"NextFh":1}'
_TRIES = 1000
_REMOVE_S = 20.0


def exchange(one: str, other: str) -> None:
    """Exchange two paths atomically.

    Raises:
        OSError: One of them does not exist, or the file system does not support it.
    """
    at_cwd = -100  # AT_FDCWD; the paths are absolute
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), other)


def make(path: str, *, is_file: bool) -> bool:
    """Create the file or folder; return whether the path was free."""
    try:
        if is_file:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(_STATE)
        else:
            os.mkdir(path, 0o700)  # noqa: PTH102
    except FileExistsError:
        return False
    return True


def remove(path: str) -> None:
    """Remove what another account had created. A folder that its owner keeps filling, or a very large one, may remain under its new name.

    rm removes a tree of any depth; shutil.rmtree fails with RecursionError at about a thousand levels.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            words = ["rm", "-rf", "--one-file-system", "--", path]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_REMOVE_S, check=False)
        else:
            os.unlink(path)  # noqa: PTH108


def claim(path: str, *, is_file: bool) -> None:
    """Put a file or an empty folder of root at the path.

    Raises:
        OSError: It is not possible.
    """
    for _ in range(_TRIES):
        if make(path, is_file=is_file):
            return
        folder = tempfile.mkdtemp(prefix=".juicefs-", dir=Path(path).parent)
        new = f"{folder}/state" if is_file else folder
        if is_file:
            make(new, is_file=True)
        try:
            exchange(new, path)
        except OSError as error:
            remove(folder)
            if error.errno == errno.EBUSY:  # something is mounted on it
                ctypes.CDLL(None).umount2(os.fsencode(path), _DETACH_NO_LINK)
            elif error.errno != errno.ENOENT:  # it was removed meanwhile
                raise
            continue
        remove(new)
        if is_file:
            remove(folder)
        return
    raise OSError(f"another account keeps creating and removing {path}")


def main(words: list[str]) -> int:
    """Claim each path."""
    for kind, path in zip(words[::2], words[1::2]):  # noqa: B905 - Python 3.9
        try:
            claim(path, is_file=kind == "file")
        except OSError as error:
            print(f"{path} cannot be replaced by one of root: {error}. Fix: see `ls -ld {path}`", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
