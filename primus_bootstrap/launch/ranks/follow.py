"""Follow the logs of ranks while they run, and prefix each line with its node and rank."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.launch.ranks import rank_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_INTERVAL_S = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass
class _Tail:
    """A growing file, read from an offset."""

    path: Path
    prefix: str
    offset: int = 0
    partial: bytes = b""

    def read(self, *, last: bool) -> list[str]:
        """Return the new complete lines; with `last`, also an incomplete one."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read() if last else file.read(_CHUNK_BYTES)
        except OSError:
            return []  # the rank has not created it yet
        self.offset += len(data)
        *lines, self.partial = (self.partial + data).split(b"\n")
        if last and self.partial:
            lines, self.partial = [*lines, self.partial], b""
        return [self.prefix + line.decode("utf-8", "replace") for line in lines]


class Follower:
    """A thread that passes new lines of some ranks to `sink`, as `[node/rank] text` without a line break."""

    def __init__(self, run_dir: Path, node: str, ranks: Sequence[int], sink: Callable[[str], None]) -> None:
        """Remember the current ends of the logs; earlier lines are not shown."""
        self._tails = [_Tail(rank_log.log_path(run_dir, rank), f"[{node}/{rank}] ") for rank in ranks]
        for tail in self._tails:
            tail.offset = tail.path.stat().st_size if tail.path.is_file() else 0
        self._sink = sink
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and show the remaining lines."""
        self._ended.set()
        self._thread.join()
        self._show(last=True)

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self._show(last=False)

    def _show(self, *, last: bool) -> None:
        for tail in self._tails:
            for line in tail.read(last=last):
                self._sink(line)
