"""Reading and writing a file past the page cache, with a check of what is in it."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MIB = 2**20
_PATTERN_BYTES = 64 * _MIB


@dataclass(frozen=True, slots=True)
class Pass:
    """One way to go through the file: the operation, bytes of a block, blocks at once, and when to stop short of the end (s)."""

    operation: str
    block: int
    jobs: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """How much was read or written, in which time."""

    bytes: int
    seconds: float


class DataFile:
    """A file whose bytes are known: random ones (none makes them smaller), the same at the same place whenever they are written."""

    def __init__(self, path: Path, size: int) -> None:
        """Find out whether the file system allows O_DIRECT."""
        self.path, self.size = path, size
        # Memory of mmap begins on a page, which O_DIRECT wants.
        self._pattern = mmap.mmap(-1, min(size, _PATTERN_BYTES))
        self._pattern.write(random.Random(0).randbytes(len(self._pattern)))  # noqa: S311 - no secret
        self.direct = self._allows_direct()
        self._filled = False

    def fill(self) -> None:
        """Write the known bytes, unless they are there."""
        if not self._filled:
            self.run(Pass("sequential_write", _MIB if self.size % _MIB == 0 else 4096, 1, float("inf")))

    def run(self, step: Pass) -> Done:
        """Go through the file once: in order, or each block once in random order; a write is durable when it counts."""
        write, sequential = step.operation.endswith("write"), step.operation.startswith("sequential")
        flags = (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY) | (os.O_DIRECT if self.direct else 0)
        descriptor = os.open(self.path, flags | (os.O_SYNC if write and not sequential else 0), 0o600)
        try:
            if not write:
                self._forget(descriptor)
            places = list(range(0, self.size, step.block))
            if not sequential:
                random.shuffle(places)
            started = time.perf_counter()
            done = self._in_parts(descriptor, places, step)
            if write and sequential:
                os.fsync(descriptor)
            seconds = time.perf_counter() - started
        finally:
            os.close(descriptor)
        self._filled = self._filled or (write and sequential and done == self.size)
        return Done(done, seconds)

    def is_right(self) -> bool:
        """Return whether the storage gives back every byte that was written."""
        descriptor = os.open(self.path, os.O_RDONLY | (os.O_DIRECT if self.direct else 0))
        block = _MIB if self.size % _MIB == 0 else 4096
        try:
            self._forget(descriptor)
            with mmap.mmap(-1, block) as buffer:
                for place in range(0, self.size, block):
                    os.preadv(descriptor, [buffer], place)
                    if buffer[:] != self._bytes(place, block)[:]:
                        return False
        finally:
            os.close(descriptor)
        return True

    def _in_parts(self, descriptor: int, places: list[int], step: Pass) -> int:
        """Share the places among threads; return the bytes that were read or written."""
        stop = threading.Event()
        end = time.perf_counter() + step.limit_s

        def one_job(own: list[int]) -> int:
            with mmap.mmap(-1, step.block) as buffer:
                for number, place in enumerate(own):
                    if stop.is_set() or time.perf_counter() > end:
                        return number * step.block
                    if step.operation.endswith("write"):
                        done = os.pwritev(descriptor, [self._bytes(place, step.block)], place)
                    else:
                        done = os.preadv(descriptor, [buffer], place)
                    if done != step.block:
                        raise OSError(f"{self.path}: {done} bytes of {step.block} at {place}")
            return len(own) * step.block

        with ThreadPoolExecutor(step.jobs) as pool:
            try:
                return sum(pool.map(one_job, [places[first :: step.jobs] for first in range(step.jobs)]))
            finally:
                stop.set()  # where this thread was asked to stop, the others do so too

    def _bytes(self, place: int, count: int) -> memoryview:
        first = place % len(self._pattern)
        return memoryview(self._pattern)[first : first + count]

    def _forget(self, descriptor: int) -> None:
        """Have the kernel drop the file's pages: what is read next comes from the storage."""
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM if not self.direct else os.POSIX_FADV_NORMAL)

    def _allows_direct(self) -> bool:
        """Return whether a page can be written past the page cache; file systems say no in different ways, all of them EINVAL."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError:
            return False
        try:
            os.pwritev(descriptor, [memoryview(self._pattern)[:4096]], 0)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True
