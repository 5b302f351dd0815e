"""End a rank that makes no progress, and report its step and phase."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workloads.common.errors import StalledError
from workloads.train import flight_recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

# If a C call never releases the interpreter's lock, the watchdog thread is blocked too. faulthandler then ends the rank, this much later.
_FALLBACK_S = 10.0
_RECORDER_S = 5.0  # time limit for reading the flight recorder; less than _FALLBACK_S
_INTERVAL_S = 0.2
_PEERS_S = 1.0
_LEAVE_S = 60.0


class Watchdog:
    """Monitors the training thread. Every call of `progress` restarts the clock."""

    def __init__(self, *, program: str, rank: int) -> None:
        """Create the watchdog without a limit; `progress` sets the first one."""
        self._program, self._rank = program, rank
        self._lock = threading.Lock()
        self._limit_s, self._since = 0.0, time.monotonic()
        self._step, self._phase = 0, "startup"
        self._exit_code, self._expired = StalledError.exit_code, False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def progress(self, step: int, *, limit_s: float) -> None:
        """Start the clock of a step. A `limit_s` of 0 means no limit."""
        with self._lock:
            self._step, self._limit_s, self._since = step, limit_s, time.monotonic()
        if limit_s:
            faulthandler.dump_traceback_later(limit_s + _FALLBACK_S, exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Set the phase of the step, for the message."""
        self._phase, before = name, self._phase
        yield
        self._phase = before

    def enter(self, phase: str) -> None:
        """Set the phase until the next call, for a loop that is not ours."""
        self._phase = phase

    def start(self) -> None:
        """Start the watchdog thread, which ends with the process."""
        self._thread.start()

    def leave(self, exit_code: int) -> None:
        """Set a short limit for the end of the process, so that lost peers cannot block it."""
        faulthandler.cancel_dump_traceback_later()
        with self._lock:
            if not self._expired:
                self._exit_code, self._phase, self._limit_s, self._since = exit_code, "leaving", _LEAVE_S, time.monotonic()
                return
        self._thread.join()  # the watchdog has expired and ends the process with its own exit code

    def _watch(self) -> None:
        while True:
            time.sleep(_INTERVAL_S)
            with self._lock:
                waited_s, limit_s = time.monotonic() - self._since, self._limit_s
                self._expired = limit_s > 0 and waited_s > limit_s
            if self._expired:
                self._end(waited_s)

    def _end(self, waited_s: float) -> None:
        sys.stderr.write(
            f"{self._program}: rank {self._rank}: no progress for {waited_s:.1f} s: step {self._step}, phase {self._phase}\n"
            "  fix: find the rank in a phase that does not wait for others (its log contains its stack); check its node's kernel log,"
            " storage and network; raise watchdog.step_timeout_s if a step may take this long\n"
        )
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        positions = flight_recorder.read(_RECORDER_S)
        if positions:
            sys.stderr.write(f"{self._program}: rank {self._rank}: flight recorder: {positions}\n")
            sys.stderr.flush()
        # The limits of all ranks expire at about the same time. Wait until the other ranks have reported their phase.
        time.sleep(_PEERS_S)
        # os._exit also ends a process whose main thread is stuck in a library. It does not affect checkpoints on disk.
        os._exit(self._exit_code)
