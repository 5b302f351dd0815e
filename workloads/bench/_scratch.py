"""Create a temporary folder for a storage benchmark. It is removed even if the benchmark is killed."""

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
# Waits until the benchmark closes its end of the pipe, or ends, and then removes the folder.
_GUARDIAN = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
_GUARDIAN_S = 60


def require_space(folder: Path, needed_bytes: int, keep_free_percent: float) -> None:
    """Check that enough space stays free during the benchmark.

    Raises:
        SettingsError: The folder does not exist, or its file system is too full.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is not a folder", fix="pass --folder with a folder on the storage to measure")
    found = os.statvfs(folder)
    free_bytes, total_bytes = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free_bytes - needed_bytes < total_bytes * keep_free_percent / 100:
        raise SettingsError(
            f"{folder}: {needed_bytes} bytes needed, {free_bytes} of {total_bytes} bytes free, {keep_free_percent:g} % must stay free",
            fix="free space, or lower --size-mib or --keep-free-percent",
        )


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a folder, and remove it at the end. Also remove leftovers of this host, for example after a power failure."""
    prefix = f".primus-bench-{host_name()}-"
    for path in parent.glob(f"{prefix}*"):
        if not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    guardian = subprocess.Popen([sys.executable, "-c", _GUARDIAN, str(folder)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        with (folder / _LOCK).open("w") as lock:
            with suppress(OSError):  # storage without locks, such as some Lustre mounts: leftovers then stay
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guardian.communicate(timeout=_GUARDIAN_S)


def _in_use(folder: Path) -> bool:
    """Return whether another process uses the folder: it holds the lock, or the lock file does not exist yet."""
    try:
        # Other users of shared storage may have created it: do not follow links, and do not block on a named pipe.
        with os.fdopen(os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
