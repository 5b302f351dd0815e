"""Events of an Ansible that a task starts are read as they are written: whole lines, once, marked as foreign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.engine.runner import Tributary

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.engine.runner import RawEvent


def test_lines_are_handed_on_once_and_whole(tmp_path: Path) -> None:
    """Half a line waits for its end, a file that is not there yet for its beginning, and nothing asks the run to end."""
    seen: list[RawEvent] = []
    path = tmp_path / "lines"
    follow = Tributary(path, seen.append)

    assert follow.read() is False
    path.write_text('{"event": "a"}\n{"event": ', encoding="utf-8")
    assert follow.read() is False
    assert seen == [{"event": "a", "foreign": True}]

    path.write_text('{"event": "a"}\n{"event": "b"}\n', encoding="utf-8")
    follow.read()
    follow.read()
    assert [event["event"] for event in seen] == ["a", "b"]
