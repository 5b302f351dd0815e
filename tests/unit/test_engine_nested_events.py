"""The events of a nested Ansible, read while it writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.engine.runner import NestedEventReader

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.engine.runner import RawEvent


def test_complete_lines_are_passed_on_once(tmp_path: Path) -> None:
    """An incomplete line is read later, the file may not exist yet, and `read` never stops the run."""
    events: list[RawEvent] = []
    path = tmp_path / "lines"
    reader = NestedEventReader(path, events.append)

    assert reader.read() is False
    path.write_text('{"event": "a"}\n{"event": ', encoding="utf-8")
    assert reader.read() is False
    assert events == [{"event": "a", "foreign": True}]

    path.write_text('{"event": "a"}\n{"event": "b"}\n', encoding="utf-8")
    reader.read()
    reader.read()
    assert [event["event"] for event in events] == ["a", "b"]


@pytest.mark.parametrize("damaged", [b'{"event": "a", "eve', b"\xff\xfe", b"[" * 100_000, b"[]", b'{"event": "a", "event_data": []}'])
def test_a_damaged_line_is_skipped(tmp_path: Path, damaged: bytes) -> None:
    """A full disk can damage a line. An exception would leave Ansible running unattended."""
    events: list[RawEvent] = []
    path = tmp_path / "lines"
    path.write_bytes(damaged + b'\n{"event": "b", "event_data": {"host": "n1"}}\n')

    NestedEventReader(path, events.append).read()

    assert events == [{"event": "b", "event_data": {"host": "n1"}, "foreign": True}]
