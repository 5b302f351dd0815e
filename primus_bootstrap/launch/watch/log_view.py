"""Print the end of a rank's log, and follow it until the job has ended. Each attempt writes a new file of the same name."""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from primus_bootstrap.core.errors import PlanError, PrimusError
from primus_bootstrap.launch.safe_files import read_tail
from primus_bootstrap.launch.untrusted import printable_log
from primus_bootstrap.launch.watch import job_state as states

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_folder import JobFolder

LINES = 200
_MAX_BYTES = 8 << 20
PIECE_BYTES = 1 << 16
_EVERY_S = 0.5
_LOOK_EVERY_S = 2.0


def show(folder: JobFolder, rank: int, *, lines: int, follow: bool) -> int:
    """Print the last lines of a rank's log; with `follow` continue until the job has ended.

    Raises:
        PlanError: There is no log yet, and `follow` is not set.
    """
    path = folder.run / "logs" / f"rank-{rank:05d}.log"
    try:
        text = read_tail(path, _MAX_BYTES)
    except OSError as error:
        if not follow:
            fix = f"check with `primus-bootstrap workload status hosts.yaml {folder.path.name}` whether the job runs and has this rank"
            missing = isinstance(error, FileNotFoundError)
            what = f"{path}: rank {rank} has written nothing yet" if missing else f"{path}: cannot be read: {error}"
            raise PlanError(what, fix=fix) from error
        text = b""
    _write(b"".join(text.splitlines(keepends=True)[-lines:]) if lines > 0 else b"")
    if follow:
        _follow(folder, path)
    return 0


def _follow(folder: JobFolder, path: Path) -> None:
    """Print what is appended to the file, and to each file that replaces it."""
    number, offset = _end(path)
    looked = 0.0
    ended = False
    while True:
        piece = read_piece(path, offset, number=number)
        if piece is not None:
            number, offset = piece.number, piece.offset + len(piece.data)
            if piece.data:
                _write(piece.data)
                continue
        if ended:
            return
        if time.monotonic() - looked > _LOOK_EVERY_S:
            looked = time.monotonic()
            with suppress(PrimusError):
                state = folder.state()
                ended = state is not None and state.phase in states.TERMINAL
        time.sleep(_EVERY_S)


def _end(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


class Piece(NamedTuple):
    """A part of a file: the inode number, the offset of the part, and its bytes."""

    number: int
    offset: int
    data: bytes


def read_piece(path: Path, offset: int, *, number: int | None = None) -> Piece | None:
    """Return at most `PIECE_BYTES` of a file from an offset on; None if there is no such file.

    The offset is 0 if the file is shorter, or has another inode number than `number`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        start = offset if number in (None, found.st_ino) and found.st_size >= offset else 0
        file.seek(start)
        return Piece(found.st_ino, start, file.read(PIECE_BYTES))


def _write(text: bytes) -> None:
    sys.stdout.write(printable_log(text.decode("utf-8", "replace")))
    sys.stdout.flush()
