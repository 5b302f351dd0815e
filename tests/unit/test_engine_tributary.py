"""Events of an Ansible that a task starts are read as they are written: whole lines, once, marked as foreign."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.engine.runner import NestedEventReader

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.engine.runner import RawEvent


def test_lines_are_handed_on_once_and_whole(tmp_path: Path) -> None:
    """Half a line waits for its end, a file that is not there yet for its beginning, and nothing asks the run to end."""
    seen: list[RawEvent] = []
    path = tmp_path / "lines"
    follow = NestedEventReader(path, seen.append)

    assert follow.read() is False
    path.write_text('{"event": "a"}\n{"event": ', encoding="utf-8")
    assert follow.read() is False
    assert seen == [{"event": "a", "foreign": True}]

    path.write_text('{"event": "a"}\n{"event": "b"}\n', encoding="utf-8")
    follow.read()
    follow.read()
    assert [event["event"] for event in seen] == ["a", "b"]


@pytest.mark.parametrize("damaged", [b'{"event": "a", "eve', b"\xff\xfe", b"[" * 100_000, b"[]", b'{"event": "a", "event_data": []}'])
def test_a_damaged_line_is_left_out_and_the_next_ones_are_read(tmp_path: Path, damaged: bytes) -> None:
    """A disk that was full for a moment tears a line; an error here would leave Ansible running without anybody who follows it."""
    seen: list[RawEvent] = []
    path = tmp_path / "lines"
    path.write_bytes(damaged + b'\n{"event": "b", "event_data": {"host": "n1"}}\n')

    NestedEventReader(path, seen.append).read()

    assert seen == [{"event": "b", "event_data": {"host": "n1"}, "foreign": True}]
