"""primus_bootstrap.launch.watch.job_folder and node_record: the files of a job's folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import node_record
from primus_bootstrap.launch.watch.job_folder import JobFolder
from primus_bootstrap.launch.watch.job_spec import Job
from primus_bootstrap.launch.watch.loop import Watcher
from primus_bootstrap.launch.watch.node_record import NodeRecord
from primus_bootstrap.launch.watch.restart_policy import Event

JOB = Job("a-000000", "a", "ada", "slurm", 2, ("train",))


class NoTarget:
    """A target without methods."""


def test_events_are_synced_before_the_state_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss may repeat an event, but never loses one."""
    order: list[str] = []
    rename = Path.replace

    def noting(path: Path, target: Path) -> Path:
        order.append(f"replace {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", lambda fd: order.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}"))
    monkeypatch.setattr(Path, "replace", noting)
    watcher = Watcher(JOB, JobFolder(tmp_path), NoTarget())  # type: ignore[arg-type]

    watcher._save(states.State(JOB.id), (Event("submitted"),))

    assert order[:2] == ["sync events.jsonl", f"sync {tmp_path.name}"]
    assert order.index("replace state.json") > 1


def test_a_line_after_an_incomplete_one_is_separate(tmp_path: Path) -> None:
    """A crash may leave an incomplete line."""
    folder = JobFolder(tmp_path)
    folder.append("events.jsonl", {"n": 1})
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"n": 2, "to')

    folder.append("events.jsonl", {"n": 3})

    assert (tmp_path / "events.jsonl").read_text().splitlines() == ['{"n": 1}', '{"n": 2, "to', '{"n": 3}']


def test_a_record_with_invalid_utf_8_is_still_read(tmp_path: Path) -> None:
    """A record may quote the output of any program."""
    record = NodeRecord(0, "n1", "n1", "boot", "7", 1.0)
    node_record.claim(tmp_path, record)
    node_record.close(tmp_path, record, ended=2.0, exit_code=3, note="X")
    path = tmp_path / "node-00000.json"
    path.write_bytes(path.read_bytes().replace(b'"X"', b'"\xff"'))
    (tmp_path / "claim").write_bytes(b"7\xff")

    found = node_record.read_all(tmp_path)[0]
    assert (found.exit_code, found.note) == (3, "\N{REPLACEMENT CHARACTER}")
    assert node_record.owner(tmp_path) == "7\N{REPLACEMENT CHARACTER}"
    assert node_record.claim(tmp_path, record) == "Slurm job 7\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff\xfe{", b"{", b""])
def test_an_invalid_record_is_skipped(tmp_path: Path, text: bytes) -> None:
    """Incomplete, foreign or deeply nested content."""
    (tmp_path / "node-00000.json").write_bytes(text)
    (tmp_path / "node-00001.json").write_text(json.dumps(asdict(NodeRecord(1, "n2", "n2", "boot", "7", 1.0))))

    assert list(node_record.read_all(tmp_path)) == [1]
