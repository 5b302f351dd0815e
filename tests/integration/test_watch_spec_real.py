"""primus_bootstrap.launch.watch.job_spec and folder: valid jobs, and the creation of their folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.fleet import jobs
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from primus_bootstrap.launch.watch import watch_program
from tests.unit.test_watch_spec import JOB, ME, SSH

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_created_once_and_only_for_the_own_account(tmp_path: Path) -> None:
    """A repetition changes nothing. Another job with that id, or of another account, is refused."""
    first, changed = folders.create(tmp_path, json.dumps(JOB))
    assert changed
    assert first.key() == first.key()
    assert folders.create(tmp_path, json.dumps(JOB)) == (first, False)
    for wrong, said in (
        ({**JOB, "words": ["other"]}, "another job has this id"),
        ({**JOB, "id": "b-000000", "user": "nobody-here"}, "this host has no account nobody-here"),
    ):
        with pytest.raises(PrimusError, match=said):
            folders.create(tmp_path, json.dumps(wrong))
    with pytest.raises(PrimusError, match="cannot be created"):
        folders.create(tmp_path / "missing", json.dumps(JOB))

    assert [path.name for path in tmp_path.iterdir()] == ["a-000000"]
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert (first.path / "key").stat().st_mode & 0o777 == 0o600


def test_a_repeated_submission_may_have_other_hosts(tmp_path: Path) -> None:
    """Their order, and the excluded ones, may differ. The user's own settings may not."""
    second = {"name": "n2", "address": "10.0.0.2"}
    hosts: dict[str, Any] = {"hosts": [*JOB["direct"]["hosts"], second], "ssh": SSH}
    first, _ = folders.create(tmp_path, json.dumps({**JOB, "direct": hosts}))
    later = {**JOB, "direct": {**hosts, "hosts": hosts["hosts"][::-1]}, "left_out": [{"host": "n2", "reason": "is quarantined"}]}

    assert folders.create(tmp_path, json.dumps(later)) == (first, False)
    assert first.job().left_out == ()
    with pytest.raises(PrimusError, match="another job"):
        folders.create(tmp_path, json.dumps({**JOB, "direct": {**hosts, "hosts": [second]}}))


def test_show_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job without a watcher has no state; other folders are not listed."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (tmp_path / "something").mkdir()
    folder.append("events.jsonl", {"time": 0, "kind": "submitted", "attempt": 0, "host": "", "reason": "", "step": None})

    assert watch_program.main(["show", "--folder", str(folder.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert watch_program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert watch_program.main(["show", "--folder", str(folder.path)]) == 0
    text = capsys.readouterr().out
    assert watch_program.main(["show", "--folder", str(tmp_path / "something")]) == 2

    assert (shown["schema"], shown["state"], shown["stale"]) == ("primus.job-status/1", None, False)
    assert shown["job"]["words"] == ["train", "pretrain"]
    short = {key: shown["job"][key] for key in ("id", "name", "user", "target")}
    assert listed == {"schema": "primus.job-list/1", "jobs": [{**shown, "job": short, "events": []}]}
    assert text == f"a-000000  {ME}  direct  pending  attempt 0  step -  no watcher has started yet\n  1970-01-01 00:00:00Z  submitted\n"


def test_a_list_of_many_jobs_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without events, and with the newest attempt only."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    attempts = tuple(states.Attempt(number) for number in range(1, 51))
    states.save(folder.state_file, states.State(JOB["id"], attempt=50, attempts=attempts))
    assert watch_program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["jobs"]

    assert [item["attempt"] for item in listed["state"]["attempts"]] == [50]


def test_large_files_of_a_job_do_not_fill_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Controllers read at most 1 MiB of a list. A user can make job.json and state.json large."""
    large = json.dumps({**JOB, "environment": {f"X{number}": "x" * 1000 for number in range(3000)}})
    folders.create(tmp_path, large)
    folder, _ = folders.create(tmp_path, json.dumps({**JOB, "id": "other-0a1b2d", "name": "other"}))
    states.save(folder.state_file, states.State("other-0a1b2d", reason="x" * 2_000_000))
    assert watch_program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    text = capsys.readouterr().out

    assert len(text) < 10_000
    assert [(job.id, job.phase) for job in jobs.read_list(text)] == [(JOB["id"], "submitted"), ("other-0a1b2d", states.PENDING)]


@pytest.mark.parametrize(
    "state",
    [
        {"updated": "x", "phase": "running"},
        {"hosts": [1]},
        {"attempts": 7},
        {"unknown": [1]},
        '{"attempts": [' + "[" * 900 + "]" * 900 + "]}",
        "[" * 200_000,
        [],
    ],
)
def test_an_invalid_state_does_not_hide_other_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: object) -> None:
    """A user can write the state of the own job. It is listed on the host and on the controller."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    folders.create(tmp_path, json.dumps({**JOB, "id": "other-0a1b2d", "name": "other"}))
    whole = {**states.State(JOB["id"]).to_json(), **state} if isinstance(state, dict) else state
    folder.state_file.write_text(whole if isinstance(whole, str) else json.dumps(whole))
    assert watch_program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    text = capsys.readouterr().out
    assert watch_program.main(["list", "--root", str(tmp_path)]) == 0

    assert {job.id for job in jobs.read_list(text)} == {JOB["id"], "other-0a1b2d"}
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_job_file_that_changes_is_listed_as_checked_or_as_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner changes id and account between two reads."""
    folder, other = (folders.create(tmp_path, json.dumps({**JOB, "id": name}))[0] for name in ("a-000000", "b-000000"))
    good, foreign = folder.job_file.read_text(), other.job_file.read_text()
    read = safe_files.read_regular
    reads: list[Path] = []

    def flip(path: Path, **options: Any) -> bytes:
        found: bytes = read(path, **options)
        if path == folder.job_file:
            reads.append(path)
            path.write_text(foreign if len(reads) % 2 else good)
        return found

    monkeypatch.setattr(safe_files, "read_regular", flip)
    monkeypatch.setattr(safe_files, "within", lambda _limit_s, call, **_: call())
    assert watch_program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["jobs"]

    assert reads
    assert [item["job"]["id"] for item in listed] == ["a-000000", "b-000000"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have a folder of another account")
def test_a_job_that_names_another_account_is_a_problem_of_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job belongs to the owner of its folder."""
    monkeypatch.setattr(watch_program, "_as_owner", lambda _: None)  # this number is no account here
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    os.chown(folder.path, 64973, 64973)
    assert watch_program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["jobs"]

    assert (item["job"]["user"], item["state"]) == ("64973", None)
    assert f"the job belongs to {ME}, and its folder to 64973" in item["problem"]
