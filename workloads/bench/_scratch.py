"""A folder for a storage measurement: it does not fill the disk, and is removed also when the program is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.common.errors import SettingsError
from workloads.common.results import host_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK = "lock"
# Reads until the measuring program has closed its end of the pipe, by whatever it ends, and removes the folder then.
_GUARDIAN = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
_GUARDIAN_S = 60


def require_space(folder: Path, needed_bytes: int, keep_free_percent: float) -> None:
    """Refuse to measure where too little would stay free meanwhile.

    Raises:
        SettingsError: The folder is none, or its file system is too full.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is no folder", fix="give --folder a folder on the storage that is to be measured")
    found = os.statvfs(folder)
    free_bytes, total_bytes = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free_bytes - needed_bytes < total_bytes * keep_free_percent / 100:
        raise SettingsError(
            f"{folder}: {needed_bytes} bytes are needed, {free_bytes} of {total_bytes} are free, {keep_free_percent:g} % must stay free",
            fix="free space, or lower --size-mib or --keep-free-percent",
        )


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Make a folder for this program alone, and remove it; those that this host has left behind after a power failure go as well."""
    prefix = f".primus-bench-{host_name()}-"
    for path in parent.glob(f"{prefix}*"):
        if not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    guardian = subprocess.Popen([sys.executable, "-c", _GUARDIAN, str(folder)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        with (folder / _LOCK).open("w") as lock:
            with suppress(OSError):  # storage without locks (Lustre may have none): leftovers then stay, because none can be told from this
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guardian.communicate(timeout=_GUARDIAN_S)


def _in_use(folder: Path) -> bool:
    """Return whether another program holds the folder's lock; one without a lock was only just made, or is half removed."""
    try:
        # On shared storage others may have made it: follow no link, and do not wait for the other end of a named pipe.
        with os.fdopen(os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
