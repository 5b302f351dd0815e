"""primus_bootstrap.launch.watch.watch_program: the events of a job, read from an offset."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import log_view
from primus_bootstrap.launch.watch.watch_program import events_from

if TYPE_CHECKING:
    from pathlib import Path


def line(step: int, reason: str = "") -> bytes:
    """Return an event as the watcher writes it."""
    return json.dumps({"time": 1.0, "kind": "k", "attempt": 1, "host": "", "reason": reason, "step": step}).encode() + b"\n"


def steps(path: Path, offset: int) -> tuple[list[int], int]:
    """Return the steps of the events, and the next offset."""
    events, end = events_from(path, offset)
    return [event["step"] for event in events], end


def test_each_event_is_read_once(tmp_path: Path) -> None:
    """The next piece begins after the last complete line."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(number, "x" * 900) for number in range(300)))
    found: list[int] = []
    offset = 0
    while (piece := steps(path, offset))[0]:
        found, offset = found + piece[0], piece[1]

    assert found == list(range(300))
    assert offset == path.stat().st_size > 3 * log_view.PIECE_BYTES


def test_an_incomplete_line_is_read_later(tmp_path: Path) -> None:
    """The watcher may be writing it."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1) + line(2)[:10])
    first = steps(path, 0)
    path.write_bytes(line(1) + line(2))

    assert first == ([1], len(line(1)))
    assert steps(path, first[1]) == ([2], path.stat().st_size)


def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    """The job's user owns the file: other content, an endless line or a pipe must not stop the reader."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'[]\n"x"\n{"time": "soon"}\n\xff\n' + b"[" * 1000 + b"\n" + line(1) + b"y" * 200_000 + b"\n" + line(2))
    found: list[int] = []
    offset = 0
    for _ in range(10):
        piece, offset = steps(path, offset)
        found += piece
    os.mkfifo(tmp_path / "pipe")

    assert (found, offset) == ([1, 2], path.stat().st_size)
    assert events_from(tmp_path / "pipe", 0) == ([], 0)
    assert events_from(tmp_path / "none", 7) == ([], 7)


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    """An offset beyond its end belongs to another file."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1))

    assert steps(path, 10_000) == ([1], path.stat().st_size)
