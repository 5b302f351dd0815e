"""primus_bootstrap.launch.watch.spec and folder: what a job may say, and how its folder comes to be."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.fleet import jobs
from primus_bootstrap.launch.errors import LaunchError
from primus_bootstrap.launch.watch import folder as folders
from primus_bootstrap.launch.watch import program
from primus_bootstrap.launch.watch import state as states
from primus_bootstrap.launch.watch.folder import JobFolder
from primus_bootstrap.launch.watch.loop import Watcher
from primus_bootstrap.launch.watch.seen import Candidates
from primus_bootstrap.launch.watch.spec import read_job

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = pwd.getpwuid(os.geteuid()).pw_name
SSH = {"identity": "/key", "known_hosts": "/known"}
JOB: dict[str, Any] = {
    "schema": "primus.job/1",
    "id": "a-000000",
    "name": "a",
    "user": ME,
    "target": "direct",
    "nodes": 1,
    "words": ["train", "pretrain"],
    "direct": {"hosts": [{"name": "n1", "address": "10.0.0.1"}], "ssh": SSH},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodez": 1}, "nodez: there is no such key; did you mean nodes?"),
        ({"policy": {"lost_after": 1}}, "policy.lost_after: there is no such key; did you mean lost_after_s?"),
        ({"nodes": 0}, "nodes: 0 is no whole number from 1 on"),
        ({"nodes": True}, "nodes: True is no whole number"),
        ({"nodes": 2}, "2 nodes are wanted, and there are 1 hosts with spares"),
        ({"id": "../../etc"}, "id: '../../etc' is no text like"),
        ({"words": []}, "words: there is no task"),
        ({"words": ["a\0b"]}, "is no list of texts"),
        ({"options": ["--nnodes=4"]}, "options: --nnodes=4 is given by the watcher"),
        ({"options": ["--master_addr", "x"]}, "options: --master_addr is given by the watcher"),
        ({"environment": {"A B": "1"}}, "environment.A B: needs a name"),
        ({"target": "slurm"}, "direct: the target is slurm"),
        ({"direct": {"hosts": [{"name": "n1", "address": "-oProxyCommand=x"}], "ssh": SSH}}, "direct.hosts[0].address"),
        ({"direct": {"hosts": [{"name": "n1", "address": "a"}], "spares": [{"name": "n1", "address": "b"}], "ssh": SSH}}, "more than once"),
        ({"direct": {"hosts": [{"name": "n1", "address": "a"}], "key": "/etc/x"}}, "direct.key: there is no such key"),
        ({"policy": {"backoff_s": []}}, "policy.backoff_s: [] is no list of seconds"),
        ({"left_out": "n1"}, "left_out is no list of hosts"),
        ({"left_out": [{"host": "-x", "reason": "r"}]}, "left_out[0].host: '-x' is no text like"),
        ({"left_out": [{"host": "n1", "why": "r"}]}, "left_out[0].why: there is no such key"),
        ({"checkpoints": "runs"}, "checkpoints: 'runs' is no absolute path"),
    ],
)
def test_everything_that_is_wrong_is_said_with_its_place(changes: dict[str, Any], said: str) -> None:
    """Before anything is contacted; a second mistake is not hidden by the first."""
    with pytest.raises(LaunchError) as caught:
        read_job(json.dumps({**JOB, "grace_s": "long", **changes}), origin="job.json")

    assert said in str(caught.value)
    assert "job.json: grace_s: 'long' is no whole number" in str(caught.value)


@pytest.mark.parametrize("option", ["-N4", "--nodes=4", "--requeue", "--exclude=n1", "-o", "--array=1-4", "--partition=x"])
def test_options_of_sbatch_that_the_watcher_gives_are_refused(option: str) -> None:
    """Two of them would contradict each other."""
    job = {**{key: value for key, value in JOB.items() if key != "direct"}, "target": "slurm", "slurm": {"options": [option]}}
    with pytest.raises(LaunchError, match="given by the watcher"):
        read_job(json.dumps(job), origin="job.json")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other accounts can enter, unlike pytest's own."""
    if os.geteuid():
        pytest.skip("needs root, which hands folders to other accounts")
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_a_folder_is_made_once_and_only_for_oneself(tmp_path: Path) -> None:
    """The same again changes nothing; another job with that id, or of somebody else, is refused; nothing half-made stays."""
    first, changed = folders.create(tmp_path, json.dumps(JOB))
    assert changed
    assert first.key() == first.key()
    assert folders.create(tmp_path, json.dumps(JOB)) == (first, False)
    for wrong, said in (
        ({**JOB, "words": ["other"]}, "another job with this id"),
        ({**JOB, "id": "b-000000", "user": "nobody-here"}, "there is no account nobody-here"),
    ):
        with pytest.raises(LaunchError, match=said):
            folders.create(tmp_path, json.dumps(wrong))
    with pytest.raises(LaunchError, match="cannot be made"):
        folders.create(tmp_path / "missing", json.dumps(JOB))

    assert [path.name for path in tmp_path.iterdir()] == ["a-000000"]
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert (first.path / "key").stat().st_mode & 0o777 == 0o600


def test_root_makes_a_job_folder_and_hands_it_to_the_job_user(open_folder: Path) -> None:
    """The folder of all jobs is root's alone, so nobody else can put a folder of that name there."""
    made, _ = folders.create(open_folder, json.dumps({**JOB, "user": "nobody"}))
    found = {path.name: (path.stat().st_uid, path.stat().st_mode & 0o777) for path in (made.path, *made.path.iterdir())}
    nobody = pwd.getpwnam("nobody").pw_uid

    assert found == {
        "a-000000": (nobody, 0o700),
        "job.json": (nobody, 0o600),
        "key": (nobody, 0o600),
        **dict.fromkeys(("requests", "attempts", "run"), (nobody, 0o755)),
    }


def test_no_job_is_made_where_others_can_replace_it(open_folder: Path) -> None:
    """A folder of all jobs that users may write to, or that is a link, is refused by name."""
    (open_folder / "link").symlink_to(open_folder)
    with pytest.raises(LaunchError, match="link: is a symbolic link"):
        folders.create(open_folder / "link", json.dumps(JOB))
    below = open_folder / "shared"
    below.mkdir()
    (below / "jobs").mkdir()
    below.chmod(0o777)
    with pytest.raises(LaunchError, match="has mode 0777: others can replace"):
        folders.create(below / "jobs", json.dumps(JOB))


def test_a_submission_that_is_repeated_may_find_other_hosts_in_service(tmp_path: Path) -> None:
    """The order of the hosts and who is left out are what a submission finds; what its user asks for must be the same."""
    second = {"name": "n2", "address": "10.0.0.2"}
    hosts: dict[str, Any] = {"hosts": [*JOB["direct"]["hosts"], second], "ssh": SSH}
    first, _ = folders.create(tmp_path, json.dumps({**JOB, "direct": hosts}))
    later = {**JOB, "direct": {**hosts, "hosts": hosts["hosts"][::-1]}, "left_out": [{"host": "n2", "reason": "is quarantined"}]}

    assert folders.create(tmp_path, json.dumps(later)) == (first, False)
    assert first.job().left_out == ()
    with pytest.raises(LaunchError, match="another job"):
        folders.create(tmp_path, json.dumps({**JOB, "direct": {**hosts, "hosts": [second]}}))


class Nobody:
    """A target without hosts, which ends its watcher when it is asked for them."""

    def __init__(self) -> None:
        """Have no watcher yet."""
        self.watcher: Watcher | None = None

    def candidates(self) -> Candidates:
        """Have none."""
        if self.watcher:
            self.watcher.stop.set()
        return Candidates()


def test_the_first_state_of_a_job_excludes_who_was_left_out(tmp_path: Path) -> None:
    """What the submission found is in state.json before the first attempt, where people see it as well."""
    left_out = {"host": "n1", "reason": "is quarantined by ada (ECC errors)"}
    folder, _ = folders.create(tmp_path, json.dumps({**JOB, "left_out": [left_out]}))
    nobody: Any = Nobody()
    nobody.watcher = Watcher(folder.job(), folder, nobody, every_s=0.01)
    nobody.watcher.run()
    state = folder.state()

    assert state is not None
    assert [(one.host, one.reason, one.hardware) for one in state.excluded] == [(*left_out.values(), False)]


def test_a_line_that_a_crash_left_unfinished_does_not_swallow_the_next(tmp_path: Path) -> None:
    """The next line starts on a line of its own."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (folder.path / "events.jsonl").write_text('{"kind": "torn')
    folder.append("events.jsonl", {"kind": "whole"})

    assert (folder.path / "events.jsonl").read_text().splitlines() == ['{"kind": "torn', '{"kind": "whole"}']


def test_what_belongs_to_an_attempt_is_kept_with_it(tmp_path: Path) -> None:
    """The next attempt's diagnosis must not read the logs of the one before; steps and checkpoints go on."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (folder.run / "logs").mkdir()
    for name in ("failure.json", "plan-00001.json", "metrics.prom", "steps.jsonl", "logs/rank-00000.log"):
        (folder.run / name).write_text(name)
    folder.set_aside(1)
    folder.set_aside(1)

    assert [path.name for path in folder.run.iterdir()] == ["steps.jsonl"]
    assert (folder.attempt(1) / "logs" / "rank-00000.log").read_text() == "logs/rank-00000.log"


def test_people_and_programs_can_read_how_jobs_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before a watcher has looked at it there is no state; what is no job is left out of the list."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (tmp_path / "something").mkdir()
    folder.append("events.jsonl", {"time": 0, "kind": "submitted", "attempt": 0, "host": "", "reason": "", "step": None})

    assert program.main(["show", "--folder", str(folder.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert program.main(["show", "--folder", str(folder.path)]) == 0
    text = capsys.readouterr().out
    assert program.main(["show", "--folder", str(tmp_path / "something")]) == 2

    assert (shown["schema"], shown["state"], shown["stale"]) == ("primus.job-status/1", None, False)
    assert shown["job"]["words"] == ["train", "pretrain"]
    assert listed == {"schema": "primus.job-list/1", "jobs": [{**shown, "events": []}]}
    assert text == f"a-000000  {ME}  direct  pending  attempt 0  step -  not watched yet\n  1970-01-01 00:00:00Z  submitted\n"


def test_a_watcher_that_cannot_write_says_what_and_how_to_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Already at its start, before it has a lock: systemd shows the line and tries again."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (folder.path / "watch.lock").mkdir()
    code = program.main(["run", "--folder", str(folder.path)])
    said = capsys.readouterr().err

    assert code == 3
    assert said.startswith(f"primus-watch: {folder.path}: the shared storage failed: ")
    assert "\n  fix: free space or mend the storage" in said


def test_who_asks_last_is_heard(tmp_path: Path) -> None:
    """Cancelled and resumed, or the other way round, before a watcher came to look."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    heard = []
    for name in ("cancel", "resume", "cancel"):
        folder.request(name)
        heard.append(sorted(folder.requests()))

    assert heard == [["cancel"], ["resume"], ["cancel"]]


def test_a_list_of_many_jobs_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes over SSH as a whole: no events, and of many attempts the newest."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    attempts = tuple(states.Attempt(number) for number in range(1, 51))
    states.save(folder.state_file, states.State(JOB["id"], attempt=50, attempts=attempts))
    assert program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["jobs"]

    assert [item["attempt"] for item in listed["state"]["attempts"]] == [50]


@pytest.mark.parametrize(
    "state",
    [
        {"updated": "x", "phase": "running"},
        {"hosts": [1]},
        {"attempts": 7},
        {"unknown": [1]},
        "[" * 200_000,
        [],
    ],
)
def test_a_state_of_any_form_leaves_the_list_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: object) -> None:
    """A user writes the state of the own job; on the host and on the controller the job is listed, and so are those of others."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    folders.create(tmp_path, json.dumps({**JOB, "id": "other-0a1b2d", "name": "other"}))
    whole = {**states.State(JOB["id"]).to_json(), **state} if isinstance(state, dict) else state
    folder.state_file.write_text(whole if isinstance(whole, str) else json.dumps(whole))
    assert program.main(["list", "--root", str(tmp_path), "--json"]) == 0
    text = capsys.readouterr().out
    assert program.main(["list", "--root", str(tmp_path)]) == 0

    assert {job.id for job in jobs.read_list(text)} == {JOB["id"], "other-0a1b2d"}
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_storage_that_is_away_is_no_job_that_was_removed(tmp_path: Path) -> None:
    """The one is tried again by systemd, since the exit code is not 0; the other has no watcher any more."""
    words = ["run", "--folder", str(tmp_path / "jobs" / "a-000000")]
    away = program.main(words)
    (tmp_path / "jobs").mkdir()
    not_mounted = program.main(words)
    (tmp_path / "jobs" / "other").mkdir()

    assert 0 not in (away, not_mounted)
    assert program.main(words) == 0


def test_a_folder_that_was_copied_is_no_job(tmp_path: Path) -> None:
    """Two watchers of one attempt would be the result."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    folder.path.rename(tmp_path / "b-000000")
    with pytest.raises(LaunchError, match="do not move or copy"):
        JobFolder(tmp_path / "b-000000").job()
