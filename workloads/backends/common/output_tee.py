"""Read the lines that a backend prints, while they still go to the log."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Reader:
    """Calls a function with lines, from one thread at a time; lines that the function itself prints are not read."""

    def __init__(self, read: Callable[[str], None]) -> None:
        self.lock = threading.RLock()
        self._read = read
        self._reading = False

    def lines(self, partial: str, text: str) -> str:
        """Read the complete lines, and return the rest."""
        if self._reading:
            return partial
        *lines, rest = (partial + text).split("\n")
        self._reading = True
        try:
            for line in lines:
                self._read(line)
        finally:
            self._reading = False
        return rest


class _Tee:
    """A text stream that passes everything on, and each complete line to a reader."""

    def __init__(self, stream: IO[str], reader: _Reader) -> None:
        self._stream, self._reader, self._partial = stream, reader, ""

    def write(self, text: str) -> int:
        with self._reader.lock:
            self._stream.write(text)
            self._partial = self._reader.lines(self._partial, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def read_lines(read: Callable[[str], None]) -> Iterator[None]:
    """Call `read` with each line that this process prints to stdout or stderr from Python, from any thread."""
    before, reader = (sys.stdout, sys.stderr), _Reader(read)
    sys.stdout, sys.stderr = _Tee(before[0], reader), _Tee(before[1], reader)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
