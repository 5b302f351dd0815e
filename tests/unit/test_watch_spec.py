"""primus_bootstrap.launch.watch.job_spec and job_folder: job.json, and the creation of a job's folder."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import PrimusError
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import watch_program
from primus_bootstrap.launch.watch.job_folder import JobFolder
from primus_bootstrap.launch.watch.job_spec import parse_job, read_job
from primus_bootstrap.launch.watch.loop import Watcher
from primus_bootstrap.launch.watch.observation import Candidates

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
    ("changes", "expected"),
    [
        ({"nodez": 1}, "nodez: did you mean nodes?"),
        ({"policy": {"lost_after": 1}}, "policy.lost_after: did you mean lost_after_s?"),
        ({"nodes": 0}, "nodes: expected a number from 1 to 1000000000, found 0"),
        ({"nodes": True}, "nodes: expected a whole number, found True"),
        ({"nodes": 2}, "direct: the job needs 2 hosts, and direct names 1 with spares"),
        ({"id": "../../etc"}, "id: expected a job id: the name, a dash and six hexadecimal digits, found '../../etc'"),
        ({"words": []}, "words: expected a task, found []"),
        ({"words": ["a\0b"]}, "words[0]: expected text without NUL characters"),
        ({"options": ["--nnodes=4"]}, "options: the watcher sets --nnodes=4 itself"),
        ({"options": ["--master_addr", "x"]}, "options: the watcher sets --master_addr itself"),
        ({"environment": {"A B": "1"}}, "environment.A B: expected a variable name"),
        ({"target": "slurm"}, "direct: the target is slurm"),
        ({"direct": {"hosts": [{"name": "n1", "address": "-oProxyCommand=x"}], "ssh": SSH}}, "direct.hosts[0].address"),
        ({"direct": {"hosts": [{"name": "n1", "address": "a"}], "spares": [{"name": "n1", "address": "b"}], "ssh": SSH}}, "more than once"),
        ({"direct": {"hosts": [{"name": "n1", "address": "a"}], "key": "/etc/x"}}, "direct.key: unknown key"),
        ({"policy": {"backoff_s": []}}, "policy.backoff_s: expected at least one entry"),
        ({"left_out": "n1"}, "left_out: expected a list"),
        ({"left_out": [{"host": "-x", "reason": "r"}]}, "left_out[0].host: expected a host name, found '-x'"),
        ({"left_out": [{"host": "n1", "why": "r"}]}, "left_out[0].why: unknown key"),
        ({"checkpoints": "runs"}, "checkpoints: expected an absolute path or an empty text, found 'runs'"),
    ],
)
def test_all_mistakes_of_a_job_are_reported_with_their_paths(changes: dict[str, Any], expected: str) -> None:
    """The first mistake does not hide the second."""
    with pytest.raises(PrimusError) as caught:
        read_job(json.dumps({**JOB, "grace_s": "long", **changes}), origin="job.json")

    assert expected in str(caught.value)
    assert "job.json: grace_s: expected a whole number, found 'long'" in str(caught.value)


@pytest.mark.parametrize("option", ["-N4", "--nodes=4", "--requeue", "--exclude=n1", "-o", "--array=1-4", "--partition=x"])
def test_options_of_sbatch_that_the_watcher_sets_are_refused(option: str) -> None:
    """Twice the same option would be a contradiction."""
    job = {**{key: value for key, value in JOB.items() if key != "direct"}, "target": "slurm", "slurm": {"options": [option]}}
    with pytest.raises(PrimusError, match="the watcher sets"):
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


def test_root_creates_a_job_folder_for_the_jobs_user(open_folder: Path) -> None:
    """Only root can write to the folder of all jobs."""
    made, _ = folders.create(open_folder, json.dumps({**JOB, "user": "nobody"}))
    found = {path.name: (path.stat().st_uid, path.stat().st_mode & 0o777) for path in (made.path, *made.path.iterdir())}
    nobody = pwd.getpwnam("nobody").pw_uid

    assert found == {
        "a-000000": (nobody, 0o700),
        "job.json": (nobody, 0o600),
        "key": (nobody, 0o600),
        **dict.fromkeys(("requests", "attempts", "run"), (nobody, 0o755)),
    }


def test_a_job_is_not_created_where_others_can_replace_it(open_folder: Path) -> None:
    """The folder of all jobs is a symbolic link, or users may write to its parent."""
    (open_folder / "link").symlink_to(open_folder)
    with pytest.raises(PrimusError, match="link: is a symbolic link"):
        folders.create(open_folder / "link", json.dumps(JOB))
    below = open_folder / "shared"
    below.mkdir()
    (below / "jobs").mkdir()
    below.chmod(0o777)
    with pytest.raises(PrimusError, match="has mode 0777: others can replace"):
        folders.create(below / "jobs", json.dumps(JOB))


class Nobody:
    """A target without hosts, which ends its watcher."""

    def __init__(self) -> None:
        """Start without a watcher."""
        self.watcher: Watcher | None = None

    def candidates(self) -> Candidates:
        """Return no hosts."""
        if self.watcher:
            self.watcher.stop.set()
        return Candidates()


def test_the_first_state_excludes_the_hosts_that_were_left_out(tmp_path: Path) -> None:
    """state.json has them before the first attempt."""
    left_out = {"host": "n1", "reason": "is quarantined by ada (ECC errors)"}
    folder, _ = folders.create(tmp_path, json.dumps({**JOB, "left_out": [left_out]}))
    nobody: Any = Nobody()
    nobody.watcher = Watcher(folder.job(), folder, nobody, every_s=0.01)
    nobody.watcher.run()
    state = folder.state()

    assert state is not None
    assert [(one.host, one.reason, one.hardware) for one in state.excluded] == [(*left_out.values(), False)]


def test_a_line_after_an_incomplete_one_is_complete(tmp_path: Path) -> None:
    """It starts on a line of its own."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (folder.path / "events.jsonl").write_text('{"kind": "torn')
    folder.append("events.jsonl", {"kind": "whole"})

    assert (folder.path / "events.jsonl").read_text().splitlines() == ['{"kind": "torn', '{"kind": "whole"}']


def test_the_files_of_an_attempt_are_moved_to_its_folder(tmp_path: Path) -> None:
    """The next diagnosis must not read old logs. Steps and checkpoints stay."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (folder.run / "logs").mkdir()
    for name in ("failure.json", "plan-00001.json", "metrics.prom", "steps.jsonl", "logs/rank-00000.log"):
        (folder.run / name).write_text(name)
    folder.set_aside(1)
    folder.set_aside(1)

    assert [path.name for path in folder.run.iterdir()] == ["steps.jsonl"]
    assert (folder.attempt(1) / "logs" / "rank-00000.log").read_text() == "logs/rank-00000.log"


def test_a_watcher_that_cannot_write_reports_a_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also before it has its lock file."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    (folder.path / "watch.lock").mkdir()
    code = watch_program.main(["run", "--folder", str(folder.path)])
    said = capsys.readouterr().err

    assert code == 3
    assert said.startswith(f"primus-watch: {folder.path}: the shared storage failed: ")
    assert "\n  fix: free space, or repair the storage" in said


def test_the_last_request_counts(tmp_path: Path) -> None:
    """Cancel and resume before the watcher has applied either."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    heard = []
    for name in ("cancel", "resume", "cancel"):
        folder.request(name)
        heard.append(sorted(folder.requests()))

    assert heard == [["cancel"], ["resume"], ["cancel"]]


def test_missing_storage_differs_from_a_removed_job(tmp_path: Path) -> None:
    """Missing storage gives an exit code other than 0, so systemd restarts the watcher."""
    words = ["run", "--folder", str(tmp_path / "jobs" / "a-000000")]
    away = watch_program.main(words)
    (tmp_path / "jobs").mkdir()
    not_mounted = watch_program.main(words)
    (tmp_path / "jobs" / "other").mkdir()

    assert 0 not in (away, not_mounted)
    assert watch_program.main(words) == 0


def test_a_copied_folder_is_refused(tmp_path: Path) -> None:
    """Two watchers would run one attempt."""
    folder, _ = folders.create(tmp_path, json.dumps(JOB))
    folder.path.rename(tmp_path / "b-000000")
    with pytest.raises(PrimusError, match="do not move or copy"):
        JobFolder(tmp_path / "b-000000").job()


def test_a_job_is_written_as_it_is_read() -> None:
    """job.json has only the block of its target, and no key of earlier releases."""
    job = parse_job(JOB, origin="job.json")
    data = job.to_json()

    assert parse_job(data, origin="job.json") == job
    assert data["direct"] == {"hosts": [{"name": "n1", "address": "10.0.0.1"}], "spares": []}
    assert not {"slurm", "kubernetes", "created", "left_out"} & set(data)
    assert "settle_s" not in data["policy"]
