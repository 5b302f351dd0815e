"""Earlier runs: list, estimates, status of each host, and deletion."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.engine import history
from primus_bootstrap.engine.events import Event, PhaseFinished, PhaseStarted, Recap, RunFinished, RunStarted
from primus_bootstrap.engine.history import (
    delete_old_runs,
    find_run,
    last_report,
    list_runs,
    read_report,
)
from primus_bootstrap.engine.journal import Journal, read_journal
from primus_bootstrap.engine.report import Tally, report_text
from primus_bootstrap.engine.state_folder import RunFolder, new_run_id, runs_dir

if TYPE_CHECKING:
    from pathlib import Path


def write_run(
    state_dir: Path, run: str, *, seconds: float, changed: int = 0, hosts: tuple[str, ...] = ("a", "b"), verb: str = "apply"
) -> None:
    """Write a run of one phase; `changed` is the number of changes on each host."""
    tally = Tally()
    folder = RunFolder(runs_dir(state_dir) / run)
    folder.path.mkdir(parents=True)
    journal = Journal(folder.journal)
    for event in (
        RunStarted(run, verb, "small", 100.0, (("gpu", hosts),)),
        PhaseStarted("gpu", 1, 1, hosts, 100.0),
        PhaseFinished("gpu", seconds, tuple((host, 1, changed, 0) for host in hosts)),
        Recap((), ()),
        RunFinished(200.0, 0),
    ):
        tally.add(event)
        journal.write(event)
    journal.close()
    folder.report.write_text(report_text(tally.report()), encoding="utf-8")


def test_runs_are_listed_newest_first_and_found_by_prefix(tmp_path: Path) -> None:
    """A unique prefix is enough; otherwise the error has the number of matches."""
    write_run(tmp_path, "20260101T000000Z-aaaa", seconds=1)
    write_run(tmp_path, "20260102T000000Z-bbbb", seconds=1)

    assert [folder.run for folder in list_runs(tmp_path)] == ["20260102T000000Z-bbbb", "20260101T000000Z-aaaa"]
    assert find_run(tmp_path, "20260102").run == "20260102T000000Z-bbbb"
    with pytest.raises(UsageError, match="2 runs start with 2026"):
        find_run(tmp_path, "2026")
    with pytest.raises(UsageError, match="no run starts with 1999"):
        find_run(tmp_path, "1999")


def test_old_runs_and_secrets_of_killed_runs_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are runs without a journal, and the private folder that a killed run recorded."""
    monkeypatch.setattr(history, "KEPT_RUNS", 2)
    for day in range(1, 5):
        write_run(tmp_path, f"2026010{day}T000000Z-aaaa", seconds=1)
    (runs_dir(tmp_path) / "20260109T000000Z-dead").mkdir()
    private, other = tmp_path / "primus-123", tmp_path / "mine"
    for folder in (private, other):
        folder.mkdir()
    (runs_dir(tmp_path) / "20260103T000000Z-aaaa" / "private").write_text(str(private), encoding="utf-8")
    (runs_dir(tmp_path) / "20260104T000000Z-aaaa" / "private").write_text(str(other), encoding="utf-8")

    delete_old_runs(tmp_path)

    assert sorted(path.name[:8] for path in runs_dir(tmp_path).iterdir()) == ["20260103", "20260104"]
    assert (private.exists(), other.exists()) == (False, True)


def test_leftovers_of_ansible_runner_are_deleted(tmp_path: Path) -> None:
    """A run that was killed early leaves its events and its whole environment. Its output stays."""
    write_run(tmp_path, "20260101T000000Z-aaaa", seconds=1)
    artifacts = runs_dir(tmp_path) / "20260101T000000Z-aaaa" / "artifacts" / "1"
    (artifacts / "job_events").mkdir(parents=True)
    for name in ("job_events/1.json", "command", "stdout"):
        (artifacts / name).write_text("SECRET=1", encoding="utf-8")

    delete_old_runs(tmp_path)

    assert [path.name for path in artifacts.iterdir()] == ["stdout"]


def test_the_inventory_copy_of_a_killed_run_is_deleted(tmp_path: Path) -> None:
    """It may contain secrets in plain text, like hosts.yaml. The rest of the run stays."""
    write_run(tmp_path, "20260101T000000Z-aaaa", seconds=1)
    folder = RunFolder(runs_dir(tmp_path) / "20260101T000000Z-aaaa")
    (folder.inventory / "group_vars").mkdir(parents=True)
    (folder.inventory / "group_vars" / "all.yml").write_text("site_secret: word\n", encoding="utf-8")

    delete_old_runs(tmp_path)

    assert not folder.inventory.exists()
    assert folder.journal.exists()


def test_an_incomplete_journal_line_is_skipped(tmp_path: Path) -> None:
    """All complete lines are read."""
    write_run(tmp_path, "20260101T000000Z-aaaa", seconds=1)
    (folder,) = list_runs(tmp_path)
    whole = list(read_journal(folder.journal))
    with folder.journal.open("ab") as file:
        file.write(json.dumps({"event": "Recap", "failed": ["a"]}).encode()[:-3])

    assert list(read_journal(folder.journal)) == whole


def test_run_ids_sort_by_time_and_differ() -> None:
    """Two runs of the same second have different ids."""
    first, second = new_run_id(0.0), new_run_id(0.0)

    assert first.startswith("19700101T000000Z-")
    assert first != second


@pytest.mark.parametrize("text", ["", '{"run": "r', "[]", "{}", "null", '{"verb": "apply", "phases": [{"seconds": 1}]}'])
def test_a_damaged_report_is_replaced_by_the_journal(tmp_path: Path, text: str) -> None:
    """The report is built from the journal, whatever report.json contains."""
    write_run(tmp_path, "20260101T000000Z-aaaa", seconds=10.0)
    write_run(tmp_path, "20260102T000000Z-aaaa", seconds=500.0)
    folder = list_runs(tmp_path)[0]
    whole = read_report(folder)
    folder.report.write_text(text, encoding="utf-8")

    assert read_report(folder) == whole
    assert last_report(tmp_path) == whole


def test_a_journal_line_with_missing_fields_is_skipped(tmp_path: Path) -> None:
    """All other lines are read."""
    write_run(tmp_path, "20260101T000000Z-aaaa", seconds=1)
    (folder,) = list_runs(tmp_path)
    whole = list(read_journal(folder.journal))
    with folder.journal.open("ab") as file:
        file.write(b'{"event": "Recap"}\n{"event": "VerdictFound", "phase": "gpu", "verdict": 7}\n')

    assert list(read_journal(folder.journal)) == whole


def test_a_short_write_does_not_damage_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel writes only a part of a line, the rest follows in another write."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:7]))
    journal = Journal(tmp_path / "journal.jsonl")
    events: list[Event] = [RunStarted("r", "apply", "small", 100.0, (("gpu", ("a",)),)), Recap(("a",), ()), RunFinished(200.0, 4)]
    for event in events:
        journal.write(event)
    journal.close()

    assert list(read_journal(tmp_path / "journal.jsonl")) == events
