"""The history file: appended records are read again, whatever ended its writer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.bench.results.history import (
    DeviceRecord,
    Fingerprint,
    History,
    PastValue,
    append_history,
    make_history,
    read_history,
)
from primus_bootstrap.bench.results.reader import Series
from primus_bootstrap.core.errors import RunError

VALUE = PastValue(Series("gemm", "tflop_per_s", '{"m":4}', 1), "TFLOP/s", 2.5, 0.001)
PRINT = Fingerprint(driver="6.14", firmware="1.2", kernel="6.8", profile="abc")
RECORD = DeviceRecord("serial1", "node1", "0", "MI300X", ("2.13", "", "7.0", "6.14"), 100.0, "pass", PRINT, (VALUE,))


def test_appended_records_are_read_by_serial_number(tmp_path: Path) -> None:
    """In order; a missing file is an empty history."""
    path = tmp_path / "state" / "history.jsonl"
    assert read_history(path) == History()
    later, other = replace(RECORD, time=200.0, verdict="fail", host="node2"), replace(RECORD, serial="serial2")

    append_history(path, [RECORD, other])
    append_history(path, [later])
    append_history(path, [])

    history = read_history(path)
    assert history == make_history([later, RECORD, other])
    assert history.records["serial1"] == (RECORD, later)
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    """It is reported with its line number, and the next record starts on a new line."""
    path = tmp_path / "history.jsonl"
    append_history(path, [RECORD, RECORD])
    path.write_bytes(path.read_bytes()[:-40])

    torn = read_history(path)
    append_history(path, [replace(RECORD, time=300.0)])
    after = read_history(path)

    assert [record.time for record in torn.records["serial1"]] == [100.0]
    assert [record.time for record in after.records["serial1"]] == [100.0, 300.0]
    assert torn.problems == after.problems
    assert torn.problems[0].startswith(f"{path}:2: not a record of primus.bench-history/1: ")


@given(st.integers(0, 2000))
def test_all_complete_lines_of_a_cut_file_are_read(cut: int) -> None:
    """The rest is reported."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"bench-history-{os.getpid()}.jsonl"  # noqa: S108 - hypothesis runs have no tmp_path each
    try:
        append_history(path, [replace(RECORD, time=float(number)) for number in range(3)])
        data = path.read_bytes()[:cut]
        path.write_bytes(data)
        history = read_history(path)
    finally:
        path.unlink()

    records = [record for device_records in history.records.values() for record in device_records]
    whole = data.count(b"\n")
    assert whole <= len(records) <= whole + 1
    assert len(records) + len(history.problems) == whole + bool(data.rsplit(b"\n", 1)[-1])


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "7",
        "null",
        '{"schema": "primus.bench-history/2"}',
        '{"schema": "primus.bench-history/1", "verdict": "good"}',
    ],
)
def test_other_json_is_reported_and_skipped(tmp_path: Path, line: str) -> None:
    """It is not a record."""
    path = tmp_path / "history.jsonl"
    path.write_text(line + "\n")
    append_history(path, [RECORD])

    history = read_history(path)

    assert history.records == {"serial1": (RECORD,)}
    assert len(history.problems) == 1


def test_an_unreadable_history_is_an_error(tmp_path: Path) -> None:
    """It is not an empty history."""
    with pytest.raises(RunError, match=r"cannot read .*: Is a directory"):
        read_history(tmp_path)
