"""Read the lines that a backend prints, while they still go to the log."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Tee:
    """A text stream that passes everything on, and each complete line to a function."""

    def __init__(self, stream: IO[str], read: Callable[[str], None], lock: threading.RLock) -> None:
        self._stream, self._read, self._lock = stream, read, lock
        self._partial = ""
        self._reading = False

    def write(self, text: str) -> int:
        with self._lock:
            self._stream.write(text)
            if self._reading:  # a line that the reader itself prints
                return len(text)
            *lines, self._partial = (self._partial + text).split("\n")
            self._reading = True
            try:
                for line in lines:
                    self._read(line)
            finally:
                self._reading = False
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def read_lines(read: Callable[[str], None]) -> Iterator[None]:
    """Call `read` with each line that this process prints to stdout or stderr from Python, from any thread."""
    before, lock = (sys.stdout, sys.stderr), threading.RLock()
    sys.stdout, sys.stderr = _Tee(before[0], read, lock), _Tee(before[1], read, lock)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
