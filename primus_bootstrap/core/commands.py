"""Runs another program with a time limit, a limit for its output, and a rule for output that is not UTF-8."""

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

from .child_processes import descendants, send_signal  # relative: in a role's module this package is ansible.module_utils

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CHUNK_BYTES = 65536
_MAX_OUTPUT_BYTES = 64 << 20
_KEPT_ERROR_BYTES = 1 << 20
# A killed program that waits in the kernel for a device or a dead file server does not end; it stays behind.
_KILL_WAIT_S = 5.0


@dataclass(frozen=True)
class Completed:
    """The result of a program. `code` is its exit code, or -n if signal n ended it."""

    code: int
    stdout: str
    stderr: str

    def last_words(self, lines: int = 1) -> str:
        """Return the last lines of stderr, or of stdout if stderr is empty: programs report errors there."""
        return "\n".join((self.stderr.strip() or self.stdout.strip()).splitlines()[-lines:])


class OutputTooLargeError(OSError):
    """The program wrote more than `max_output_bytes` to stdout and was killed."""


def run_command(  # noqa: PLR0913 - one parameter per setting of the process; all but two have a default
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
    """Run a program without a shell and return its result; an exit code other than 0 raises no error.

    Args:
        argv: The program and its arguments. Pass no secrets: every user of the machine can read them.
        timeout_s: After this many seconds the program and its descendants are killed.
        stdin: Input of the program; empty by default, so it never waits for a terminal.
        env: Its whole environment; None for that of this process.
        cwd: Its working folder; None for that of this process.
        errors: How to decode bytes that are not UTF-8, as in `bytes.decode`.
        stdout_file: An open file that receives stdout instead of `Completed.stdout`.
        max_output_bytes: Limit for stdout. Only the last MiB of stderr is returned.

    Raises:
        TimeoutError: The program did not end in time. This is an OSError.
        OutputTooLargeError: The program wrote too much to stdout. This is an OSError.
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
    """Kill a program and its descendants, and wait up to 5 s for its end."""
    send_signal((process.pid, *descendants(process.pid)), signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)


class _Exchange:
    """Writes the input of a program and reads its output at the same time."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, stdin: bytes, timeout_s: float) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self._process, self._name, self._rest = process, name, memoryview(stdin)
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s

    def run(self, max_output_bytes: int) -> None:
        """Wait until the program has ended and closed its output."""
        process = self._process
        with selectors.DefaultSelector() as selector:
            if process.stdin:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, self._feed)
            for stream, output in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
                if stream:
                    selector.register(stream, selectors.EVENT_READ, partial(_read, output))
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
            raise self._timeout() from None

    def _left_s(self) -> float:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise self._timeout()
        return seconds

    def _timeout(self) -> TimeoutError:
        return TimeoutError(f"{self._name} did not end within {self._timeout_s:g} s")

    def _feed(self, descriptor: int) -> bool:
        """Write as much input as the pipe takes; return whether some is left. Stop if the program closed the pipe."""
        try:
            self._rest = self._rest[os.write(descriptor, self._rest[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._rest)


def _read(output: bytearray, descriptor: int) -> bool:
    """Read available output; return False at its end."""
    chunk = os.read(descriptor, _CHUNK_BYTES)
    output.extend(chunk)
    return bool(chunk)
