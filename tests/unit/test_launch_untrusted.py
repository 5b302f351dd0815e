"""primus_bootstrap.launch.untrusted: text and JSON written by users."""

from __future__ import annotations

import pytest

from primus_bootstrap.launch.untrusted import parse_json, printable, printable_data, printable_log


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 2.5, Zürich, 日本", "loss 2.5, Zürich, 日本"),
        ("a\x1b[2Jb", "a\ufffd[2Jb"),
        ("one\r\ntwo\ttabs", "one\ufffd\ufffdtwo\ufffdtabs"),
        ("\x9b31m\u202egnp", "\ufffd31m\ufffdgnp"),
    ],
)
def test_a_line_has_no_terminal_control_characters(text: str, shown: str) -> None:
    """No escape sequence, line break or direction change; letters of all scripts stay."""
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m\n\tnext", "\x1b[1;31mred\x1b[0m\n\tnext"),
        ("10 %\r20 %\r\n", "10 %\n20 %\n"),
        ("\x1b]0;title\x07 \x1b[2J\x1b[8m", "\ufffd]0;title\ufffd \ufffd[2J\x1b[8m"),
    ],
)
def test_a_log_keeps_only_lines_and_colours(text: str, shown: str) -> None:
    """A progress bar becomes lines; sequences for title, screen and keyboard are removed."""
    assert printable_log(text) == shown


def test_data_is_made_printable_at_every_depth() -> None:
    """Keys and values in lists and objects; numbers stay numbers."""
    assert printable_data({"a\n": ["\x1b", {"b": 1, "c": None}]}) == {"a\ufffd": ["\ufffd", {"b": 1, "c": None}]}


def test_deeply_nested_json_is_an_error() -> None:
    """Three million brackets must not crash the program."""
    for depth in (51, 900, 3_000_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json("[" * depth + "]" * depth)
    with pytest.raises(ValueError, match="Expecting"):
        parse_json("x")

    assert parse_json('{"a": [1]}') == {"a": [1]}
    assert parse_json("[" * 50 + "]" * 50)
