"""Runs with a fake runner that replays recorded events."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import LockedError, PlanError, RunError
from primus_bootstrap.engine import run as engine_run
from primus_bootstrap.engine.environment import ansible_environment
from primus_bootstrap.engine.events import Event, Recap, RunFinished
from primus_bootstrap.engine.history import delete_old_runs, last_report, list_runs
from primus_bootstrap.engine.journal import read_journal
from primus_bootstrap.engine.lock import cluster_lock, read_holder
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.report import report_from_events
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.engine.state_folder import jobs_dir
from primus_bootstrap.inventory.snapshot import file_sums
from tests.unit.engine_rig import LOCAL, make_cluster, write_playbooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.runner import AnsibleProcess, RawEvent
    from primus_bootstrap.inventory.cluster import Cluster

EVENTS = Path(__file__).parents[1] / "data" / "events"
PLAY = "---\n- name: Play\n  hosts: gpu_node\n  tasks: []\n"


@dataclass
class FakeRunner:
    """Replays one recording per process, cut to `length` events, and stores the processes."""

    recordings: Sequence[str]
    length: int | None = None
    processes: list[AnsibleProcess] = field(default_factory=list)

    def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """See `Runner.run`."""
        name = self.recordings[len(self.processes)]
        self.processes.append(process)
        for raw in json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))[: self.length]:
            if not cancel.is_set():
                on_event(raw)
        return 0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster with three local hosts and one phase with one play."""
    playbooks = write_playbooks(tmp_path, {"baseline": PLAY})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    return make_cluster(tmp_path, {"gpu_node": ["a", "b", "c"]}, dict.fromkeys("abc", LOCAL))


def run(cluster: Cluster, runner: FakeRunner, options: Options | None = None, *, limit: str | None = None) -> tuple[Report, list[Event]]:
    """Apply with a fake runner."""
    events: list[Event] = []
    plan = make_plan(cluster, limit=limit)
    report = apply_plan(cluster, plan, options or Options(), on_event=events.append, cancel=threading.Event(), runner=runner)
    return report, events


def test_report_names_hosts_causes_changes_and_verdicts(cluster: Cluster) -> None:
    """One host of three succeeds; a rescued failure is not in the report; verdicts are counted by outcome."""
    report, _ = run(cluster, FakeRunner(["results"]))

    hosts = {host.host: host for host in report.hosts}
    assert (report.exit_code, {name: host.result for name, host in hosts.items()}) == (4, {"a": "changed", "b": "failed", "c": "failed"})
    assert [(failure.task, failure.fix) for failure in hosts["c"].failures if failure.fix] == [
        ("Refuse", "install a newer kernel and reboot.")
    ]
    assert hosts["a"].failures == ()
    assert hosts["a"].verdict_counts == (1, 1, 0, 0)
    assert [verdict.check for verdict in hosts["a"].verdicts] == ["mtu"]
    assert ("Change", 3) in [(change.task, change.hosts) for change in report.changes]


@pytest.mark.parametrize("killed", [False, True])
def test_an_ignored_unreachable_host_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, killed: bool) -> None:
    """It is not a failure, even if the run was killed before Ansible's recap. report.json contains the reason."""
    playbooks = write_playbooks(tmp_path, {"baseline": PLAY})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": LOCAL})

    report, events = run(cluster, FakeRunner(["unreachable_ignored"]))
    if killed:
        report = report_from_events(event for event in events if not isinstance(event, Recap)) or report

    (host,) = report.hosts
    assert (report.exit_code, host.result, host.failures) == (0, "ok", ())
    assert "Connection refused" in host.ignored[0].cause
    assert last_report(cluster.state_dir).hosts[0].ignored == host.ignored  # type: ignore[union-attr]


def test_the_report_from_the_journal_equals_the_report(cluster: Cluster) -> None:
    """The journal omits results that changed nothing, but leads to the same report."""
    report, events = run(cluster, FakeRunner(["results"]))

    (folder,) = list_runs(cluster.state_dir)
    assert report_from_events(read_journal(folder.journal)) == report
    assert last_report(cluster.state_dir) == report
    assert len(list(read_journal(folder.journal))) < len(events)


def test_a_killed_run_has_a_report_from_its_journal(cluster: Cluster) -> None:
    """report.json is missing and the last line is damaged. Earlier failures are in the report."""
    run(cluster, FakeRunner(["results"]))
    (folder,) = list_runs(cluster.state_dir)
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    remaining = [line for line in lines if not any(word in line for word in (b"PhaseFinished", b"Recap", b"RunFinished"))]
    folder.journal.write_bytes(b"".join(remaining) + b'{"event":"HostResult","host":"a","pha')
    folder.report.unlink()

    report = last_report(cluster.state_dir)

    assert report is not None
    assert (report.killed, report.exit_code, report.finished) == (True, 130, 0.0)
    assert {host.host: host.result for host in report.hosts}[
        "a"
    ] == "failed"  # without a recap it is unknown whether the failure was rescued
    assert "killed" in report.problem


def test_a_missing_recap_is_a_failure(cluster: Cluster) -> None:
    """If the events end before the recap, the exit code is 4 and the report has a problem."""
    report, _ = run(cluster, FakeRunner(["serial"], length=6))

    assert report.exit_code == 4
    assert report.problem


def test_one_process_runs_all_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process imports the plan's playbooks by absolute path, checks host keys, and has a limit only if the run has one."""
    playbooks = write_playbooks(tmp_path, {"baseline": PLAY + PLAY[4:], "empty": PLAY.replace("gpu_node", "redis"), "gpu": PLAY + PLAY[4:]})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    cluster = make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, dict.fromkeys("ab", LOCAL))
    runner = FakeRunner(["serial"])

    run(cluster, runner, Options(check=True, forks=7, extra_vars=("a=b",)))

    (process,) = runner.processes
    assert [line for line in process.playbook.read_text(encoding="utf-8").splitlines() if "import" in line] == [
        f"  import_playbook: {playbooks}/baseline.yml",
        f"  import_playbook: {playbooks}/gpu.yml",
    ]
    assert (process.limit, process.arguments[2:]) == ("", ("--check", "--diff", "--forks", "7"))
    assert process.environment["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert process.environment["ANSIBLE_INVENTORY_ENABLED"] == "primus_snapshot"
    assert process.environment["https_proxy"] == "http://proxy.example:3128"
    assert process.environment["ANSIBLE_SSH_ARGS"].startswith("-o 'UserKnownHostsFile=")
    assert "StrictHostKeyChecking=yes" in process.environment["ANSIBLE_SSH_ARGS"]


def test_variables_keep_their_types(cluster: Cluster) -> None:
    """Ansible reads the variables of a verb from a private file. A date is passed as its text."""
    given = {"workload_nodes": 2, "workload_arguments": ["a"], "workload_environment": {"DAY": date(2026, 1, 2)}}
    read: list[tuple[int, object]] = []

    class Reader(FakeRunner):
        def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            path = Path(process.arguments[1].removeprefix("@"))
            read.append((path.stat().st_mode & 0o777, json.loads(path.read_text(encoding="utf-8"))))
            return super().run(process, on_event, cancel)

    run(cluster, Reader(["serial"]), Options(variables=given))

    assert read == [(0o600, {**given, "workload_environment": {"DAY": "2026-01-02"}})]


def test_a_limited_run_passes_its_hosts_in_a_file(cluster: Cluster) -> None:
    """The file lists the hosts of the plan instead of the user's pattern, so that plan and run cannot differ."""
    runner = FakeRunner(["results"])

    run(cluster, runner, Options(limited=True), limit="c,a")

    assert runner.processes[0].limit.startswith("@")
    assert Path(runner.processes[0].limit[1:]).read_text(encoding="utf-8") == "a\nc\n"


def test_a_cancelled_run_starts_no_further_process(cluster: Cluster) -> None:
    """Cancelled before the first event: exit code 130, a report, and every host is `not_reached`."""
    cancel = threading.Event()
    cancel.set()
    runner = FakeRunner(["results"])
    events: list[Event] = []

    report = apply_plan(cluster, make_plan(cluster), Options(), on_event=events.append, cancel=cancel, runner=runner)

    assert (report.exit_code, runner.processes, {host.result for host in report.hosts}) == (130, [], {"not_reached"})
    assert isinstance(events[-1], RunFinished)


def test_only_the_owner_can_read_the_state(cluster: Cluster) -> None:
    """The state folder and each run's folder have mode 0700, the journal 0600."""
    run(cluster, FakeRunner(["results"]))

    (folder,) = list_runs(cluster.state_dir)
    modes = [path.stat().st_mode & 0o777 for path in (cluster.state_dir, folder.path, folder.journal)]
    assert modes == [0o700, 0o700, 0o600]


def test_a_failed_write_leaves_no_partial_report(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """report.json does not exist then, and the report comes from the journal."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Filling(FakeRunner):
        def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            status = super().run(process, on_event, cancel)
            monkeypatch.setattr(
                "primus_bootstrap.core.atomic_files.os.fsync",
                lambda number: full(number) if name(number).startswith(".report.json") else None,
            )
            return status

    def name(number: int) -> str:
        return str(Path(f"/proc/self/fd/{number}").readlink().name)

    with pytest.raises(RunError, match=r"cannot use .*report.json: No space left on device") as caught:
        run(cluster, Filling(["results"]))

    (folder,) = list_runs(cluster.state_dir)
    assert [path.name for path in folder.path.iterdir() if "report" in path.name] == []
    assert last_report(cluster.state_dir) is not None
    assert caught.value.exit_code == 4


def test_a_full_disk_during_the_run_is_a_run_error(cluster: Cluster) -> None:
    """The journal cannot be written (ENOSPC): exit code 4, the path, and a fix."""

    class Filling(FakeRunner):
        def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            full = os.open("/dev/full", os.O_WRONLY)
            for entry in Path("/proc/self/fd").iterdir():
                if entry.exists() and entry.readlink().name == "journal.jsonl":
                    os.dup2(full, int(entry.name))
            os.close(full)
            return super().run(process, on_event, cancel)

    with pytest.raises(RunError, match=r"cannot use .*runs/.*: No space left on device") as caught:
        run(cluster, Filling(["results"]))

    assert "PRIMUS_STATE_DIR" in caught.value.fix


def test_an_unwritable_state_folder_is_an_error_before_the_run(cluster: Cluster) -> None:
    """Exit code 3, and no process was started."""
    cluster.state_dir.mkdir(parents=True)
    (cluster.state_dir / "runs").write_text("no folder", encoding="utf-8")
    runner = FakeRunner(["results"])

    with pytest.raises(PlanError, match=r"cannot use .*runs.*: Not a directory"):
        run(cluster, runner)

    assert runner.processes == []


def test_the_variable_files_of_a_linked_inventory_are_next_to_the_link(cluster: Cluster, tmp_path: Path) -> None:
    """Ansible gets the group_vars next to the link, and the link as `inventory_file`, like `validate`."""
    (tmp_path / "site" / "group_vars").mkdir(parents=True)
    (tmp_path / "site" / "group_vars" / "all.yml").write_text("site_a: 1\n", encoding="utf-8")
    link = tmp_path / "site" / "hosts.yaml"
    link.symlink_to(cluster.path)
    files: dict[str, str] = {}

    run(replace(cluster, path=link), InventoryReader(["results"], files=files))

    assert files["group_vars/all.yml"] == "site_a: 1\n"
    assert files[".primus-source"] == str(link)


@dataclass
class InventoryReader(FakeRunner):
    """Also reads the inventory of the process, and edits the original during the run."""

    files: dict[str, str] = field(default_factory=dict)
    original: Path | None = None

    def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """See `Runner.run`."""
        if self.original:
            self.original.write_text("changed: true\n", encoding="utf-8")
        folder = process.inventory.parent
        self.files |= {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()}
        assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.rglob("*")))
        return super().run(process, on_event, cancel)


def test_an_edit_during_a_run_has_no_effect_on_it(cluster: Cluster) -> None:
    """Ansible reads a private copy, which is deleted after the run."""
    before = cluster.path.read_text(encoding="utf-8")
    runner = InventoryReader(["results"], original=cluster.path)

    run(cluster, runner)

    assert runner.files["hosts.yaml"] == before
    assert not runner.processes[0].inventory.parent.exists()


def test_a_file_that_changed_since_it_was_checked_ends_the_run(cluster: Cluster) -> None:
    """Exit code 3 with its path, before Ansible starts; the copy is deleted."""
    variables = cluster.path.parent / "group_vars"
    variables.mkdir()
    (variables / "all.yml").write_text("site_a: 1\n", encoding="utf-8")
    checked = replace(cluster, sums=file_sums(cluster.path))
    (variables / "all.yml").write_text("site_a: 2\n", encoding="utf-8")
    runner = FakeRunner(["results"])

    with pytest.raises(PlanError, match=r"group_vars/all.yml was changed after it was checked"):
        run(checked, runner)

    assert runner.processes == []
    assert list(cluster.state_dir.glob("runs/*/inventory")) == []


def test_a_run_uses_the_lock_of_its_caller(cluster: Cluster) -> None:
    """The run has the id of the holder, and the lock stays held."""
    with cluster_lock(cluster.state_dir, verb="node add x", run="20261111T000000Z-0000") as held:
        plan = make_plan(cluster)
        runner = FakeRunner(["results"])
        events: list[Event] = []
        report = apply_plan(cluster, plan, Options(), on_event=events.append, cancel=threading.Event(), runner=runner, lock=held)
        holder = read_holder(cluster.state_dir)

    assert report.run == held.run
    assert holder
    assert holder.run == held.run


def test_a_submission_does_not_wait_for_a_change_of_the_cluster(cluster: Cluster) -> None:
    """It has its own lock, for its Ansible processes too, and its own runs, which the change does not delete."""
    runner = FakeRunner(["results"])
    with cluster_lock(cluster.state_dir, verb="apply", run="20261111T000000Z-0000"):
        report, _ = run(cluster, runner, Options(verb="workload submit", submits=True))
    delete_old_runs(cluster.state_dir)

    (folder,) = list_runs(cluster.state_dir)
    assert (folder.run, folder.state_dir) == (report.run, jobs_dir(cluster.state_dir.absolute()))
    assert runner.processes[0].lock == jobs_dir(cluster.state_dir.absolute()) / "lock.children"


def test_two_submissions_do_not_run_at_the_same_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be for the same job. A change of the cluster does not wait for a submission."""
    monkeypatch.setattr(engine_run, "_SUBMISSION_WAIT_S", -1.0)
    with cluster_lock(jobs_dir(cluster.state_dir), verb="workload submit", run="r"):
        with pytest.raises(LockedError, match=r"locked by workload submit of"):
            run(cluster, FakeRunner(["results"]), Options(verb="workload submit", submits=True))
        report, _ = run(cluster, FakeRunner(["results"]))

    assert report.verb == "apply"


def test_a_run_records_its_inputs(cluster: Cluster) -> None:
    """`status` needs to know whether the plan was complete, and which files the run read."""
    run(cluster, FakeRunner(["results"]), Options(complete=True))

    (folder,) = list_runs(cluster.state_dir)
    assert json.loads(folder.inputs.read_text(encoding="utf-8")) == {"complete": True, "files": file_sums(cluster.path)}


def test_a_lock_of_another_cluster_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    """cluster_name changed after the lock was taken."""
    events: list[Event] = []
    with (
        cluster_lock(tmp_path / "other", verb="v", run="r") as held,
        pytest.raises(PlanError, match=r"cluster_name in hosts.yaml was changed to small in the meantime"),
    ):
        apply_plan(cluster, make_plan(cluster), Options(), on_event=events.append, cancel=threading.Event(), lock=held)


def test_the_problem_of_a_killed_ansible_is_the_signal(cluster: Cluster) -> None:
    """It is not the last lines of Ansible's output."""

    class Killed(FakeRunner):
        def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            super().run(process, on_event, cancel)
            (process.artifacts_dir / "stdout").write_text("TASK [Something] ***\n", encoding="utf-8")
            return 137

    report, _ = run(cluster, Killed(["serial"], length=6))

    assert (report.exit_code, report.problem) == (4, "Ansible was killed (signal 9)")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LC_ALL": "", "LC_CTYPE": "de_DE.ISO-8859-1", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LANG": "de_DE.UTF-8"}, None),
        ({"LC_ALL": "en_US.utf8", "LANG": "C"}, "en_US.utf8"),
    ],
)
def test_ansible_gets_a_utf8_locale(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None) -> None:
    """Ansible does not start without one. A UTF-8 locale of the user is not changed."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert ansible_environment(Path("/state/known_hosts"), Path("/private")).get("LC_ALL") == expected
