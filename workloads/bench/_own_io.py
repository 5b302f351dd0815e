"""Read and write a file without the page cache, and verify its content."""

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
    """One pass over the file: the operation, the block size (bytes), the number of parallel jobs, and a time limit (s)."""

    operation: str
    block: int
    jobs: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """The transferred bytes and the time of a pass."""

    bytes: int
    seconds: float


class DataFile:
    """A file with a fixed pattern of random, incompressible bytes."""

    def __init__(self, path: Path, size: int) -> None:
        """Create the pattern, and check whether the file system supports O_DIRECT."""
        self.path, self.size = path, size
        # mmap returns page-aligned memory, which O_DIRECT requires.
        self._pattern = mmap.mmap(-1, min(size, _PATTERN_BYTES))
        self._pattern.write(random.Random(0).randbytes(len(self._pattern)))  # noqa: S311 - no secret
        self.direct = self._allows_direct()
        self._filled = False

    def fill(self) -> None:
        """Write the pattern, unless the file already contains it."""
        if not self._filled:
            self.run(Pass("sequential_write", _MIB if self.size % _MIB == 0 else 4096, 1, float("inf")))

    def run(self, step: Pass) -> Done:
        """Read or write each block once, in order or in random order. The time of a write includes its sync."""
        write, sequential = step.operation.endswith("write"), step.operation.startswith("sequential")
        flags = (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY) | (os.O_DIRECT if self.direct else 0)
        descriptor = os.open(self.path, flags | (os.O_SYNC if write and not sequential else 0), 0o600)
        try:
            if not write:
                self._drop_cache(descriptor)
            offsets = list(range(0, self.size, step.block))
            if not sequential:
                random.shuffle(offsets)
            started = time.perf_counter()
            done = self._run_jobs(descriptor, offsets, step)
            if write and sequential:
                os.fsync(descriptor)
            seconds = time.perf_counter() - started
        finally:
            os.close(descriptor)
        self._filled = self._filled or (write and sequential and done == self.size)
        return Done(done, seconds)

    def is_correct(self) -> bool:
        """Return whether every byte read from the storage equals the pattern."""
        descriptor = os.open(self.path, os.O_RDONLY | (os.O_DIRECT if self.direct else 0))
        block = _MIB if self.size % _MIB == 0 else 4096
        try:
            self._drop_cache(descriptor)
            with mmap.mmap(-1, block) as buffer:
                for offset in range(0, self.size, block):
                    os.preadv(descriptor, [buffer], offset)
                    if buffer[:] != self._bytes(offset, block)[:]:
                        return False
        finally:
            os.close(descriptor)
        return True

    def _run_jobs(self, descriptor: int, offsets: list[int], step: Pass) -> int:
        """Distribute the blocks over threads; return the number of transferred bytes."""
        stop = threading.Event()
        end = time.perf_counter() + step.limit_s

        def run_job(part: list[int]) -> int:
            with mmap.mmap(-1, step.block) as buffer:
                for number, offset in enumerate(part):
                    if stop.is_set() or time.perf_counter() > end:
                        return number * step.block
                    if step.operation.endswith("write"):
                        done = os.pwritev(descriptor, [self._bytes(offset, step.block)], offset)
                    else:
                        done = os.preadv(descriptor, [buffer], offset)
                    if done != step.block:
                        raise OSError(f"{self.path}: {done} bytes of {step.block} at {offset}")
            return len(part) * step.block

        with ThreadPoolExecutor(step.jobs) as pool:
            try:
                return sum(pool.map(run_job, [offsets[first :: step.jobs] for first in range(step.jobs)]))
            finally:
                stop.set()  # also stop the threads if this one was interrupted

    def _bytes(self, offset: int, count: int) -> memoryview:
        first = offset % len(self._pattern)
        return memoryview(self._pattern)[first : first + count]

    def _drop_cache(self, descriptor: int) -> None:
        """Remove the file's pages from the page cache."""
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM if not self.direct else os.POSIX_FADV_NORMAL)

    def _allows_direct(self) -> bool:
        """Return whether the file system supports O_DIRECT. Some file systems reject the open, others the write."""
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
