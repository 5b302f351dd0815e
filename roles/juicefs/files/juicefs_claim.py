"""Put something of root's in the place of names in /tmp that JuiceFS uses, whatever another account has put there.

    juicefs_claim.py folder PATH | file PATH ...

Every account can create a name in /tmp first, and again at the moment when it is removed. So what is made here is exchanged with what lies
there in one step of the kernel: there is no moment without either. Afterwards nobody but root can replace the name, because /tmp is sticky.
The file is an empty state as JuiceFS writes it (NextFh is its first handle), so that JuiceFS reads it and goes on.
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
    """Exchange two names in one step.

    Raises:
        OSError: One of them is not there, or the file system cannot do it.
    """
    here = -100  # AT_FDCWD: the paths are absolute
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), other)


def make(path: str, *, is_file: bool) -> bool:
    """Make the name where nothing lies there; return whether it was free."""
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
    """Remove what another account had there. A folder that its owner keeps filling, or a very large one, may remain under its new name.

    rm removes a tree of any depth; shutil.rmtree fails with RecursionError at about a thousand levels.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            words = ["rm", "-rf", "--one-file-system", "--", path]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_REMOVE_S, check=False)
        else:
            os.unlink(path)  # noqa: PTH108


def claim(path: str, *, is_file: bool) -> None:
    """Have a file or an empty folder of root's at the path.

    Raises:
        OSError: It cannot be done here.
    """
    for _ in range(_TRIES):
        if make(path, is_file=is_file):
            return
        own = tempfile.mkdtemp(prefix=".juicefs-", dir=Path(path).parent)
        mine = f"{own}/state" if is_file else own
        if is_file:
            make(mine, is_file=True)
        try:
            exchange(mine, path)
        except OSError as error:
            remove(own)
            if error.errno == errno.EBUSY:  # something is mounted on it
                ctypes.CDLL(None).umount2(os.fsencode(path), _DETACH_NO_LINK)
            elif error.errno != errno.ENOENT:  # it was removed meanwhile
                raise
            continue
        remove(mine)
        if is_file:
            remove(own)
        return
    raise OSError(f"another account creates and removes {path} all the time")


def main(words: list[str]) -> int:
    """Claim each name."""
    for kind, path in zip(words[::2], words[1::2]):  # noqa: B905 - Python 3.9
        try:
            claim(path, is_file=kind == "file")
        except OSError as error:
            print(f"{path} cannot be made root's: {error}; see: ls -ld {path}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
