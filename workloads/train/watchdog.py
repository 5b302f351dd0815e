"""Ends a rank that makes no progress, with a message that says where it stands: a hang must not hold a cluster."""

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

# A C call that never gives up the interpreter's lock would stop the watching thread, too: then faulthandler's own thread ends the rank,
# this much later.
_SECOND_LINE_S = 10.0
# Well within that.
_RECORDER_S = 5.0
_GLANCE_S = 0.2
_PEERS_S = 1.0
_LEAVE_S = 60.0


class Watchdog:
    """Watches the thread that trains. Every call of `progress` starts the clock again."""

    def __init__(self, *, program: str, rank: int) -> None:
        """Prepare; nothing is watched before `progress` gives a limit."""
        self._program, self._rank = program, rank
        self._lock = threading.Lock()
        self._limit_s, self._since = 0.0, time.monotonic()
        self._step, self._phase = 0, "startup"
        self._exit_code, self._expired = StalledError.exit_code, False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def progress(self, step: int, *, limit_s: float) -> None:
        """Start the clock of a step; `limit_s` of 0 means no limit."""
        with self._lock:
            self._step, self._limit_s, self._since = step, limit_s, time.monotonic()
        if limit_s:
            faulthandler.dump_traceback_later(limit_s + _SECOND_LINE_S, exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what the step is doing, for the message."""
        self._phase, before = name, self._phase
        yield
        self._phase = before

    def start(self) -> None:
        """Begin to watch; the thread ends with the process."""
        self._thread.start()

    def leave(self, exit_code: int) -> None:
        """Give the process a short time to end by itself; peers that are gone must not hold it."""
        faulthandler.cancel_dump_traceback_later()
        with self._lock:
            if not self._expired:
                self._exit_code, self._phase, self._limit_s, self._since = exit_code, "leaving", _LEAVE_S, time.monotonic()
                return
        self._thread.join()  # which ends the process: an exchange that breaks because a peer has gone is no other verdict

    def _watch(self) -> None:
        while True:
            time.sleep(_GLANCE_S)
            with self._lock:
                waited_s, limit_s = time.monotonic() - self._since, self._limit_s
                self._expired = limit_s > 0 and waited_s > limit_s
            if self._expired:
                self._end(waited_s)

    def _end(self, waited_s: float) -> None:
        sys.stderr.write(
            f"{self._program}: rank {self._rank}: no progress for {waited_s:.1f} s: step {self._step}, phase {self._phase}\n"
            "  fix: find the rank whose phase is no exchange with others (its stack is in its log); look at its node's kernel log, storage"
            " and network; raise watchdog.step_timeout_s where a step may take this long\n"
        )
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        standing = flight_recorder.look(_RECORDER_S)
        if standing:
            sys.stderr.write(f"{self._program}: rank {self._rank}: flight recorder: {standing}\n")
            sys.stderr.flush()
        # The limits of all ranks run out at about one moment: who goes at once breaks the exchange of those that have not said their phase.
        time.sleep(_PEERS_S)
        # Nothing else ends a process whose main thread is stuck in a library; the checkpoint on disk is untouched.
        os._exit(self._exit_code)
