"""The verbs `workload`: problems before a host is contacted, and a job with this machine as its service host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.report.build import report_files
from primus_bootstrap.bench.results.store import BenchStore
from primus_bootstrap.cli import workload_follow
from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError, UnknownError
from primus_bootstrap.fleet.jobs import JobCommands, JobStatus, read_status
from primus_bootstrap.launch import zipapp_file
from primus_bootstrap.launch.watch import job_folder as folders
from primus_bootstrap.launch.watch import job_state as states
from tests.command_line import run_primus
from tests.unit.bench_report_rig import bench_run, value
from tests.unit.test_workload_verbs import ID, ME
from tests.unit.test_workload_verbs import job as job
from tests.unit.test_workload_verbs import root as root

if TYPE_CHECKING:
    from collections.abc import Callable

    Cli = Callable[..., subprocess.CompletedProcess[str]]

# The verbs become root on the service host; here that is this machine.
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/python3").exists() or shutil.which("runuser") is None,
    reason="needs root and /usr/bin/python3: the service host is this machine",
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build primus-cli as one file, as the role installs it."""
    path = tmp_path_factory.mktemp("program") / "primus-cli"
    zipapp_file.write_zipapp(path)
    return path


@pytest.fixture
def cli(tmp_path: Path, program: Path, root: Path) -> Cli:
    """Run a verb in a folder whose hosts.yaml has this machine as the only service host and node."""
    inventory = {
        "all": {
            "vars": {"cluster_name": "verbs", "workload_folder": str(root), "primus_cli_program": str(program)},
            "children": {
                "primus_watch": {"hosts": {"here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}},
                "workload_node": {"hosts": {"here": None}},
            },
        }
    }
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_primus("workload", *words, folder=tmp_path)

    return run


def set_state(job: folders.JobFolder, **given: Any) -> None:
    """Write a state as the watcher does, with some of it changed."""
    fresh = states.State(job=ID, updated=time.time()).to_json()
    write_atomic(job.state_file, json.dumps({**fresh, **given}) + "\n", mode=0o600)


def test_an_invalid_job_is_refused_before_a_host_is_contacted(cli: Cli, tmp_path: Path) -> None:
    """Exit code 2 with every problem by line; no run is started."""
    (tmp_path / "job.yml").write_text("workload_name: try\nworkload_nods: 2\nworkload_target: slrum\n")
    done = cli("submit", "job.yml")

    assert done.returncode == 2
    assert "job.yml:2: workload_nods: neither a role nor Kubespray nor Ansible has this variable" in done.stderr
    assert "job.yml:3: workload_target must be one of" in done.stderr
    assert "2 problems; nothing was changed" in done.stderr
    assert not (tmp_path / ".primus").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("submit", "debug-dense", "-e", "workload_nodes=1"), "workload_user: not set"),
        (("submit", "debug-dense", "--user", "ada"), "workload_nodes: the job needs 2, and workload_node has 1 host"),
        (("submit", "debug-dense", "--user", "ada", "-e", "workload_target=slurm"), "this cluster has no Slurm"),
        (
            ("submit", "debug-dense", "--user", "ada", "-e", "workload_nodes=1", "--id", "other-0a1b2c"),
            "workload_id: 'other-0a1b2c' is not an id",
        ),
    ],
)
def test_problems_are_printed_as_json_too(cli: Cli, words: tuple[str, ...], expected: str) -> None:
    """With the same exit code."""
    done = cli(*words, "--json")

    assert done.returncode == 2, done.stderr
    assert [expected in problem["what"] for problem in json.loads(done.stdout)["problems"]] == [True], done.stdout


def test_an_unknown_job_and_an_invalid_id_are_refused(cli: Cli) -> None:
    """Exit code 2 with a fix."""
    unknown, wrong = cli("submit", "debug-dens"), cli("status", "try")

    assert (unknown.returncode, wrong.returncode) == (2, 2)
    assert "did you mean debug-dense?" in unknown.stderr
    assert "workload list hosts.yaml --all" in wrong.stderr


@needs_root
def test_the_selected_hosts_are_passed_to_the_role(cli: Cli, tmp_path: Path) -> None:
    """A spare replaces the silent host, and the newest readable bench gives the slow one.

    The role accepts these values, and then fails because the account does not exist.
    """
    path = tmp_path / "hosts.yaml"
    inventory = yaml.safe_load(path.read_text(encoding="utf-8"))
    children = inventory["all"]["children"]
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    children["workload_node"]["hosts"] = {"here": None, "gone": {"ansible_host": "host.invalid"}, "two": local}
    children["spare"] = {"hosts": {"two": None}}
    path.write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")
    run = bench_run((), (), values=(value("here", "0", 400), *(value(host, "0", 600) for host in ("two", "gone"))))
    store = BenchStore(tmp_path / ".primus/verbs/bench")
    store.save_report(report_files(run), now=1_800_000_000.0)
    store.save_report({"bench.json": "{torn"}, now=1_800_000_100.0)
    (tmp_path / "python.yml").write_text("workload_cli_options: [--python=/usr/bin/python3]\n")  # it needs no torch before the start
    done = cli("submit", "debug-dense", "--user", "nobody-of-that-name", "-e", "@python.yml", "--json")
    offer = json.loads(done.stdout)["offer"]

    assert done.returncode == 4, done.stderr
    assert "gone does not answer" in done.stderr
    assert "; spare two takes its place\n" in done.stderr
    assert (offer["hosts"], offer["spares"], [one["host"] for one in offer["left_out"]]) == (["here"], ["two"], ["gone"])
    assert offer["slow"] == {"here": "gemm on 0: 67 % of its peers' median"}
    assert "bench.json is damaged" in done.stderr
    (report,) = (tmp_path / ".primus/verbs/jobs/runs").glob("*/report.json")
    assert "There is no account nobody-of-that-name on here" in report.read_text(encoding="utf-8")


def test_a_job_without_enough_hosts_in_service_is_not_started(cli: Cli, tmp_path: Path) -> None:
    """A host does not answer, and there is no spare."""
    path = tmp_path / "hosts.yaml"
    inventory = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Port 1 is closed.
    inventory["all"]["children"]["workload_node"]["hosts"] = {"gone": {"ansible_host": "127.0.0.1", "ansible_port": 1}}
    path.write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")
    done = cli("submit", "debug-dense", "--user", "ada", "-e", "workload_nodes=1")

    assert done.returncode == 3, done.stderr
    assert "workload_nodes is 1, and only 0 hosts can be offered: gone does not answer" in done.stderr
    assert "fix: start or repair the other hosts (primus-bootstrap node list hosts.yaml)" in done.stderr
    assert not list((tmp_path / ".primus").rglob("plan.json"))


@needs_root
def test_an_unknown_id_is_an_error(cli: Cli) -> None:
    """In every verb."""
    done = [cli(verb, ID) for verb in ("status", "logs", "cancel", "resume")]

    assert [one.returncode for one in done] == [3] * 4, done
    assert {one.stderr.splitlines()[0] for one in done} == {f"error: there is no job {ID}"}


@needs_root
def test_a_job_without_a_watcher_is_shown_as_submitted(cli: Cli, job: folders.JobFolder) -> None:
    """No watcher has started yet."""
    found = json.loads(cli("status", ID, "--json").stdout)
    listed = json.loads(cli("list", "--json").stdout)

    assert (found["phase"], found["attempt"], found["step"]) == ("submitted", 0, None)
    assert [one["id"] for one in listed["jobs"]] == [job.path.name]


@needs_root
def test_a_job_is_shown_with_its_hosts_steps_and_events(cli: Cli, job: folders.JobFolder) -> None:
    """In the table, in full and as JSON."""
    set_state(job, phase="running", attempt=2, restarts=1, step=41, checkpoint=40, hosts=[{"name": "n1", "address": "10.0.0.1"}])
    job.append("events.jsonl", {"time": 5.0, "kind": "node_lost", "attempt": 1, "host": "n2", "reason": "it is silent", "step": None})
    shown, table, found = cli("status", ID), cli("list"), json.loads(cli("status", ID, "--json").stdout)

    assert shown.stdout.startswith(f"{ID}: running")
    assert "attempt 1  node_lost n2: it is silent" in shown.stdout
    assert table.stdout.splitlines()[1].split()[:5] == [ID, ME, "slurm", "running", table.stdout.splitlines()[1].split()[4]]
    assert (found["step"], found["checkpoint"], found["hosts"], found["restarts"]) == (41, 40, ["n1"], 1)


@needs_root
def test_a_job_whose_watcher_is_silent_is_unknown(cli: Cli, job: folders.JobFolder) -> None:
    """Its last state may be old."""
    set_state(job, phase="running", updated=time.time() - 3600)

    assert f"{ID}: unknown (was running: its watcher is silent)" in cli("status", ID).stdout


@needs_root
def test_a_missing_folder_of_jobs_has_one_fix_and_no_errno(cli: Cli, root: Path) -> None:
    """The shared storage is not there before the phase storage."""
    shutil.rmtree(root)
    done = cli("list")

    assert done.returncode == 4
    assert f"{root}, the folder of all jobs, does not exist\n" in done.stderr
    assert done.stderr.count("fix: ") == 1


@needs_root
def test_ended_jobs_are_listed_with_all_only(cli: Cli, job: folders.JobFolder) -> None:
    """The default table has only jobs that have not ended."""
    set_state(job, phase="failed", reason="three restarts without progress")

    assert "no job is under way" in cli("list").stdout
    assert "three restarts without progress" in cli("list", "--all").stdout


@needs_root
def test_following_ends_with_the_job(cli: Cli, job: folders.JobFolder) -> None:
    """Each event is printed once. The exit code is 4 for a failed job and 0 for one that is done."""
    set_state(job, phase="running")
    job.append("events.jsonl", {"time": 5.0, "kind": "attempt_starting", "attempt": 1, "host": "", "reason": "", "step": None})

    def end() -> None:
        job.append("events.jsonl", {"time": 6.0, "kind": "failed", "attempt": 1, "host": "", "reason": "no progress", "step": None})
        set_state(job, phase="failed", reason="no progress")

    timer = threading.Timer(4.0, end)
    timer.start()
    failed = cli("status", ID, "--follow", "--json")
    timer.join()
    set_state(job, phase="done")
    done = cli("status", ID, "--follow")

    assert (failed.returncode, done.returncode) == (4, 0)
    assert [json.loads(line).get("kind", json.loads(line).get("phase")) for line in failed.stdout.splitlines()] == [
        "attempt_starting",
        "failed",
        "failed",
    ]


@needs_root
def test_following_prints_all_events_and_status_the_newest(cli: Cli, job: folders.JobFolder) -> None:
    """A long job has more events than one answer contains."""
    set_state(job, phase="done")
    for number in range(64):
        reason = f"reason {number}: {'x' * 2000}"
        job.append("events.jsonl", {"time": 5.0, "kind": "step", "attempt": 1, "host": "", "reason": reason, "step": number})

    followed = cli("status", ID, "--follow", "--json").stdout.splitlines()
    newest = json.loads(cli("status", ID, "--json").stdout)["events"]

    assert [json.loads(line).get("step") for line in followed[:-1]] == list(range(64))
    assert [event["step"] for event in newest] == list(range(44, 64))


@needs_root
def test_logs_print_the_end_of_the_ranks_log(cli: Cli, job: folders.JobFolder) -> None:
    """A missing file is an error that names it."""
    logs = job.run / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-00003.log").write_text("one\ntwo\nthree\n")
    shown, missing = cli("logs", ID, "--rank", "3", "--lines", "2"), cli("logs", ID)

    assert shown.stdout == "two\nthree\n"
    assert missing.returncode == 4
    assert "rank-00000.log: rank 0 has written nothing yet" in missing.stderr
    assert f"workload status hosts.yaml {ID}`" in missing.stderr


@needs_root
def test_cancel_requests_once_and_never_for_an_ended_job(cli: Cli, job: folders.JobFolder) -> None:
    """The request is a file in the job's folder. For an ended job nothing is done, and the exit code is 0."""
    set_state(job, phase="running")
    first = cli("cancel", ID, "--json")
    requests = job.requests()
    job.remove_request("cancel")
    set_state(job, phase="cancelled")
    second = cli("cancel", ID)

    assert (first.returncode, second.returncode) == (0, 0)
    assert sorted(requests) == ["cancel"]
    assert sorted(job.requests()) == []
    assert json.loads(first.stdout)["requested"] is True
    assert "nothing to do" in second.stdout


@needs_root
def test_a_finished_job_is_not_resumed(cli: Cli, job: folders.JobFolder) -> None:
    """Nothing is requested."""
    set_state(job, phase="done")

    assert cli("resume", ID).stdout == f"nothing to do: {ID} is done\n"
    assert job.requests() == frozenset()


@needs_root
def test_a_job_with_an_invalid_state_is_listed_as_unknown(cli: Cli, job: folders.JobFolder, root: Path) -> None:
    """It must not disappear from the list."""
    job.state_file.write_text('{"schema": "primus.job-st')
    (root / "removed-0a1b2c").mkdir()
    listed = cli("list", "--json")
    (found,) = json.loads(listed.stdout)["jobs"]

    assert (found["id"], found["phase"]) == (ID, "unknown")
    assert "not the state of a job" in found["reason"]


def test_resume_requests_as_the_owner_and_enables_the_watcher() -> None:
    """The command is one line for the shell. The program itself drops root's rights."""
    commands = JobCommands("/jfs/primus/jobs", "/usr/local/bin/primus-cli")
    line = commands.resume(ID)
    watch = "/usr/bin/python3 -I /usr/local/bin/primus-cli watch"

    assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0
    assert line.startswith(
        f"owner=$({watch} owner --folder /jfs/primus/jobs/{ID}) && {watch} request --folder /jfs/primus/jobs/{ID} resume"
    )
    assert line.endswith(f"systemctl --quiet enable primus-watch@{ID}.service && systemctl restart primus-watch@{ID}.service")
    assert commands.cancel(ID, start_watcher=True) == line.replace(f"{ID} resume", f"{ID} cancel")
    assert "systemctl" not in commands.cancel(ID)


class FakeClient:
    """Gives these answers in their order; the last one repeats."""

    answering = "ctl2"

    def __init__(self, *answers: JobStatus | Exception) -> None:
        """Store the answers."""
        self.answers = list(answers)

    def show(self, job: str, *, events_from: int = 0) -> JobStatus:
        """Return the next answer, or raise it."""
        assert (job, events_from) == (ID, 0)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


def shown(phase: str) -> JobStatus:
    """Return the status of a job in this phase."""
    return read_status({"job": {"id": ID, "name": "try", "user": ME, "target": "slurm"}, "state": {"phase": phase}})


SILENT = RunError("no host of primus_watch answers: ctl1: timed out", fix="start one of them")


@pytest.mark.parametrize(("phase", "code"), [("done", 0), ("failed", 4)])
def test_following_survives_a_service_host_that_is_silent_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], phase: str, code: int
) -> None:
    """The silence is reported once, and does not change the exit code."""
    monkeypatch.setattr(workload_follow, "_FOLLOW_S", 0.01)
    client: Any = FakeClient(shown("running"), SILENT, SILENT, shown("running"), shown(phase))

    assert workload_follow.follow_job(client, ID, as_json=True) == code
    assert capsys.readouterr().err.splitlines() == [
        "no host of primus_watch answers: ctl1: timed out; retrying for 5 minutes, the job continues meanwhile",
        "ctl2 answers again",
    ]


def test_following_ends_with_exit_code_6_if_no_service_host_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown job is reported at once."""
    monkeypatch.setattr(workload_follow, "_FOLLOW_S", 0.01)
    monkeypatch.setattr(workload_follow, "_SILENCE_S", 0.1)
    silent: Any = FakeClient(shown("running"), SILENT)
    missing: Any = FakeClient(PlanError(f"there is no job {ID}", fix="look"))
    with pytest.raises(UnknownError, match=f"the state of {ID} is unknown: .*ctl1: timed out") as unknown:
        workload_follow.follow_job(silent, ID, as_json=False)
    with pytest.raises(PlanError):
        workload_follow.follow_job(missing, ID, as_json=False)

    assert unknown.value.exit_code == 6
    assert "start one of them; then: " in unknown.value.fix
