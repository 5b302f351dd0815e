"""primus_bootstrap.launch.ranks: output files, signals and exit records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from primus_bootstrap.launch.ranks import rank, rank_log
from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
_START = "import sys; sys.path.insert(0, {root!r}); from primus_bootstrap.launch.ranks import rank; sys.exit(rank.main(sys.argv[1:]))"
TERM, KILL, SEGV = 15, 9, 11


def words(run_dir: Path, *program: str) -> list[str]:
    """Return the command line of one rank."""
    return [sys.executable, "-I", "-c", _START.format(root=str(ROOT)), "--run-dir", str(run_dir), "--", *program]


def run(run_dir: Path, *program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one rank until it ends."""
    return subprocess.run(
        words(run_dir, *program), env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def record(run_dir: Path, number: int = 0) -> rank_log.RankRecord:
    """Return the record of a rank."""
    found = rank_log.parse_record(rank_log.record_path(run_dir, number).read_text())
    assert found is not None
    return found


def ended(run_dir: Path) -> rank_log.RankRecord:
    """Wait for the last record of rank 0."""
    until(lambda: record(run_dir).ended is not None, "the end of the record", limit_s=20)
    return record(run_dir)


def stored(run_dir: Path, number: int, code: int | None, **changes: object) -> None:
    """Write the record of a rank that started at 1000."""
    data = {
        "node": "n1",
        "rank": number,
        "world_size": 4,
        "local_rank": number,
        "attempt": 0,
        "pid": 7,
        "started": 1000.0,
        "exit_code": code,
    }
    path = rank_log.record_path(run_dir, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**data, "schema": rank_log.SCHEMA, **changes}))


def test_the_exit_code_is_that_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    """The first by time on this node; a rank that was stopped afterwards does not count."""
    stored(tmp_path, 0, 1, ended=1009.0)
    stored(tmp_path, 1, 143, ended=1001.0, signal=TERM, stopped_at=1000.9)
    stored(tmp_path, 2, 66, ended=1002.0)
    stored(tmp_path, 3, 3, ended=1000.5, node="n2")

    assert rank_log.first_failure_code(tmp_path, "n1") == 66


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), None), ((75, 75), 75), ((75, 143), 75), ((75, 1), 1), ((143, 143), 143), ((None, 0), None)],
)
def test_75_counts_only_if_no_rank_failed(tmp_path: Path, codes: tuple[int | None, ...], expected: int | None) -> None:
    """75 means stopped early with a complete checkpoint."""
    for number, code in enumerate(codes):
        stopped = {"signal": TERM, "stopped_at": 1000.5} if code == 128 + TERM else {}
        stored(tmp_path, number, code, ended=None if code is None else 1001.0 + number, **stopped)

    assert rank_log.first_failure_code(tmp_path, "n1") == expected


def test_records_of_an_earlier_larger_run_are_ignored(tmp_path: Path) -> None:
    """A run resumed with fewer ranks must not use the records of the missing ranks."""
    stored(tmp_path, 0, 0, started=9000.0, world_size=2)
    stored(tmp_path, 1, 0, started=100.0)
    stored(tmp_path, 3, 1, started=9000.0)

    assert [found.rank for found in rank_log.read_records(tmp_path)] == [0]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": "other"}', '{"node": "n1", "schema": "primus.rank/1"}'])
def test_a_truncated_record_is_none(text: str) -> None:
    """A node that lost power leaves such files."""
    assert rank_log.parse_record(text) is None


@pytest.mark.parametrize("arguments", [[], ["--run-dir", "x"], ["--run-dir", "x", "--"], ["x", "y", "--", "z"]])
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    """Only the launcher writes these arguments."""
    assert rank.main(arguments) == 2
