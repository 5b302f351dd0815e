"""Run another program to its end, with a time limit and a policy for output that is not UTF-8."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from primus_bootstrap.core.child_processes import descendants, send_signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CHUNK_BYTES = 65536
_MAX_OUTPUT_BYTES = 64 << 20
_KEPT_ERROR_BYTES = 1 << 20
# A killed program that waits in the kernel for a device or a dead file server does not end: it is left behind.
_KILL_WAIT_S = 5.0


@dataclass(frozen=True)
class Completed:
    """How a program ended. `code` is its exit code, or -n if signal n ended it."""

    code: int
    stdout: str
    stderr: str

    def last_words(self, lines: int = 1) -> str:
        """Return the last lines of stderr, or of stdout if stderr is empty, where programs report why they failed."""
        return "\n".join((self.stderr.strip() or self.stdout.strip()).splitlines()[-lines:])


class OutputTooLargeError(OSError):
    """The program wrote more than `max_output_bytes` to stdout and was killed."""


def run_command(  # noqa: PLR0913 - one parameter a setting of the process; all but two have a default
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str | bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    errors: str = "replace",
    stdout_file: IO[bytes] | None = None,
    max_output_bytes: int = _MAX_OUTPUT_BYTES,
) -> Completed:
    """Run a program, without a shell, and return how it ended; an exit code other than 0 raises nothing.

    Args:
        argv: The program and its arguments. Never a secret: every user of the machine can read them.
        timeout_s: The program is killed after this many seconds, with all that it started.
        stdin: What the program reads; nothing by default, so it never waits for a terminal.
        env: Its whole environment; None: that of this process.
        cwd: Its working folder; None: that of this process.
        errors: How bytes that are not UTF-8 are decoded, as in `bytes.decode`.
        stdout_file: An open file that receives stdout instead of `Completed.stdout`.
        max_output_bytes: The limit for stdout. Of stderr the last MiB is kept.

    Raises:
        TimeoutError: The program did not end in time. It is an OSError, so `except OSError` covers it.
        OutputTooLargeError: It wrote too much to stdout. It is an OSError as well.
        OSError: The program cannot be started, for example because it is not installed.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=stdout_file or subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        cwd=cwd,
    )
    exchange = _Exchange(process, argv[0], stdin.encode() if isinstance(stdin, str) else stdin, timeout_s)
    try:
        exchange.run(max_output_bytes)
    except BaseException:
        _kill(process)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                with suppress(OSError):
                    stream.close()
    return Completed(process.returncode, exchange.stdout.decode("utf-8", errors), exchange.stderr.decode("utf-8", errors))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it started, and wait a moment for it."""
    send_signal((process.pid, *descendants(process.pid)), signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)


class _Exchange:
    """Feeds a program and collects what it prints, all at the same time, until it has ended."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, stdin: bytes, timeout_s: float) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self._process, self._name, self._rest = process, name, memoryview(stdin)
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s

    def run(self, max_output_bytes: int) -> None:
        """Return when the program has ended and closed its output."""
        process = self._process
        with selectors.DefaultSelector() as selector:
            if process.stdin:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, self._feed)
            for stream, kept in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
                if stream:
                    selector.register(stream, selectors.EVENT_READ, partial(_read, kept))
            while selector.get_map():
                for key, _ in selector.select(self._left_s()):
                    if not key.data(key.fd):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                if len(self.stdout) > max_output_bytes:
                    raise OutputTooLargeError(f"{self._name} wrote more than {max_output_bytes} bytes")
                if len(self.stderr) > _KEPT_ERROR_BYTES:
                    del self.stderr[:-_KEPT_ERROR_BYTES]
        try:
            process.wait(self._left_s())
        except subprocess.TimeoutExpired:
            raise self._late() from None

    def _left_s(self) -> float:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise self._late()
        return seconds

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{self._name} did not end within {self._timeout_s:g} s")

    def _feed(self, descriptor: int) -> bool:
        """Write what fits; return whether something is left. A program that does not read any more gets nothing."""
        try:
            self._rest = self._rest[os.write(descriptor, self._rest[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._rest)


def _read(kept: bytearray, descriptor: int) -> bool:
    """Read what is there; return whether more may come."""
    chunk = os.read(descriptor, _CHUNK_BYTES)
    kept.extend(chunk)
    return bool(chunk)
