"""What a run makes of what a runner hands over; the runner replays, no process is started."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.engine.environment import ansible_environment
from primus_bootstrap.engine.events import Event, Recap, RunFinished
from primus_bootstrap.engine.history import last_report, list_runs
from primus_bootstrap.engine.journal import read_journal
from primus_bootstrap.engine.lock import cluster_lock, read_holder
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.report import report_from_events
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.inventory.snapshot import file_sums
from tests.unit.engine_rig import LOCAL, make_cluster, write_playbooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.runner import Job, RawEvent
    from primus_bootstrap.inventory.cluster import Cluster

EVENTS = Path(__file__).parents[1] / "data" / "events"
PLAY = "---\n- name: Play\n  hosts: gpu_node\n  tasks: []\n"


@dataclass
class FakeRunner:
    """Replays one recording a process, cut to `length` events, and keeps the jobs that it was given."""

    recordings: Sequence[str]
    length: int | None = None
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """See `Runner.run`."""
        name = self.recordings[len(self.jobs)]
        self.jobs.append(job)
        for raw in json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))[: self.length]:
            if not cancel.is_set():
                on_event(raw)
        return 0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Give a cluster of three local hosts and one phase of one play."""
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
    """One host of three gets there; a failure that was rescued is not in the report; verdicts are counted by outcome."""
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
def test_a_silent_host_that_the_playbook_goes_on_without_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, killed: bool) -> None:
    """It is no failure, also where the run was killed before Ansible's recap; the report keeps why it was left out, and reads it back."""
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


def test_report_from_the_journal_is_the_report(cluster: Cluster) -> None:
    """The journal leaves out what changed nothing, and still adds up to the same report."""
    report, events = run(cluster, FakeRunner(["results"]))

    (folder,) = list_runs(cluster.state_dir)
    assert report_from_events(read_journal(folder.journal)) == report
    assert last_report(cluster.state_dir) == report
    assert len(list(read_journal(folder.journal))) < len(events)


def test_a_run_that_was_killed_is_told_from_its_journal(cluster: Cluster) -> None:
    """No report, a torn last line: hosts that were under way are `interrupted`, and what failed before is still named."""
    run(cluster, FakeRunner(["results"]))
    (folder,) = list_runs(cluster.state_dir)
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not any(word in line for word in (b"PhaseFinished", b"Recap", b"RunFinished"))]
    folder.journal.write_bytes(b"".join(kept) + b'{"event":"HostResult","host":"a","pha')
    folder.report.unlink()

    report = last_report(cluster.state_dir)

    assert report is not None
    assert (report.killed, report.exit_code, report.finished) == (True, 130, 0.0)
    assert {host.host: host.result for host in report.hosts}["a"] == "failed"  # its rescue came after no recap: unknown, so said
    assert "killed" in report.problem


def test_ansible_that_ends_without_a_word_is_a_failure(cluster: Cluster) -> None:
    """Exit 4 and a problem, never 0, when the events stop before the recap."""
    report, _ = run(cluster, FakeRunner(["serial"], length=6))

    assert report.exit_code == 4
    assert report.problem


def test_one_process_gets_all_phases_and_only_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job imports the plan's playbooks by absolute path, checks host keys, and has no limit unless there is one."""
    playbooks = write_playbooks(tmp_path, {"baseline": PLAY + PLAY[4:], "empty": PLAY.replace("gpu_node", "redis"), "gpu": PLAY + PLAY[4:]})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    cluster = make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, dict.fromkeys("ab", LOCAL))
    runner = FakeRunner(["serial"])

    run(cluster, runner, Options(check=True, forks=7, extra_vars=("a=b",)))

    (job,) = runner.jobs
    assert [line for line in job.playbook.read_text(encoding="utf-8").splitlines() if "import" in line] == [
        f"  import_playbook: {playbooks}/baseline.yml",
        f"  import_playbook: {playbooks}/gpu.yml",
    ]
    assert (job.limit, job.arguments[2:]) == ("", ("--check", "--diff", "--forks", "7"))
    assert job.environment["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert job.environment["ANSIBLE_INVENTORY_ENABLED"] == "primus_snapshot"
    assert job.environment["https_proxy"] == "http://proxy.example:3128"
    assert job.environment["ANSIBLE_SSH_ARGS"].startswith("-o 'UserKnownHostsFile=")
    assert "StrictHostKeyChecking=yes" in job.environment["ANSIBLE_SSH_ARGS"]


def test_a_limited_run_hands_its_hosts_over_in_a_file(cluster: Cluster) -> None:
    """The hosts of the plan, not the user's pattern, so that plan and run cannot differ."""
    runner = FakeRunner(["results"])

    run(cluster, runner, Options(limited=True), limit="c,a")

    assert runner.jobs[0].limit.startswith("@")
    assert Path(runner.jobs[0].limit[1:]).read_text(encoding="utf-8") == "a\nc\n"


def test_a_cancelled_run_starts_no_further_process(cluster: Cluster) -> None:
    """Cancelled before the first event: exit 130, the report is there, and every host is `interrupted` or `not_reached`."""
    cancel = threading.Event()
    cancel.set()
    runner = FakeRunner(["results"])
    events: list[Event] = []

    report = apply_plan(cluster, make_plan(cluster), Options(), on_event=events.append, cancel=cancel, runner=runner)

    assert (report.exit_code, runner.jobs, {host.result for host in report.hosts}) == (130, [], {"not_reached"})
    assert isinstance(events[-1], RunFinished)


def test_state_is_readable_by_its_owner_alone(cluster: Cluster) -> None:
    """The cluster's state folder and each run's folder are 0700, the journal 0600."""
    run(cluster, FakeRunner(["results"]))

    (folder,) = list_runs(cluster.state_dir)
    modes = [path.stat().st_mode & 0o777 for path in (cluster.state_dir, folder.path, folder.journal)]
    assert modes == [0o700, 0o700, 0o600]


def test_the_report_is_never_half_written(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written whole leaves no report.json at all, and the run is told from its journal."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Filling(FakeRunner):
        def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            status = super().run(job, on_event, cancel)
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
    """The kernel itself says ENOSPC for the journal: exit 4, the path, and what to do."""

    class Filling(FakeRunner):
        def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            full = os.open("/dev/full", os.O_WRONLY)
            for entry in Path("/proc/self/fd").iterdir():
                if entry.exists() and entry.readlink().name == "journal.jsonl":
                    os.dup2(full, int(entry.name))
            os.close(full)
            return super().run(job, on_event, cancel)

    with pytest.raises(RunError, match=r"cannot use .*runs/.*: No space left on device") as caught:
        run(cluster, Filling(["results"]))

    assert "PRIMUS_STATE_DIR" in caught.value.fix


def test_a_state_folder_that_cannot_be_written_touches_nothing(cluster: Cluster) -> None:
    """Exit 3, and no process was started."""
    cluster.state_dir.mkdir(parents=True)
    (cluster.state_dir / "runs").write_text("no folder", encoding="utf-8")
    runner = FakeRunner(["results"])

    with pytest.raises(PlanError, match=r"cannot use .*runs.*: Not a directory"):
        run(cluster, runner)

    assert runner.jobs == []


def test_a_linked_inventory_is_read_where_the_link_is(cluster: Cluster, tmp_path: Path) -> None:
    """Ansible gets the group_vars beside the link, and the link as `inventory_file`, as `validate` does."""
    (tmp_path / "site" / "group_vars").mkdir(parents=True)
    (tmp_path / "site" / "group_vars" / "all.yml").write_text("site_a: 1\n", encoding="utf-8")
    link = tmp_path / "site" / "hosts.yaml"
    link.symlink_to(cluster.path)
    seen: dict[str, str] = {}

    run(replace(cluster, path=link), Looking(["results"], seen=seen))

    assert seen["group_vars/all.yml"] == "site_a: 1\n"
    assert seen[".primus-source"] == str(link)


@dataclass
class Looking(FakeRunner):
    """Also reads the inventory that Ansible would be given, and changes the original meanwhile."""

    seen: dict[str, str] = field(default_factory=dict)
    original: Path | None = None

    def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """See `Runner.run`."""
        if self.original:
            self.original.write_text("changed: meanwhile\n", encoding="utf-8")
        folder = job.inventory.parent
        self.seen |= {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()}
        assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.rglob("*")))
        return super().run(job, on_event, cancel)


def test_every_process_of_a_run_reads_the_inventory_as_it_was(cluster: Cluster) -> None:
    """An edit while a run is under way is not read; the copy is private, and gone once the run has ended."""
    before = cluster.path.read_text(encoding="utf-8")
    runner = Looking(["results"], original=cluster.path)

    run(cluster, runner)

    assert runner.seen["hosts.yaml"] == before
    assert not runner.jobs[0].inventory.parent.exists()


def test_a_file_that_changed_since_it_was_checked_ends_the_run(cluster: Cluster) -> None:
    """Exit 3 with its path before Ansible starts; nothing of the copy is left."""
    variables = cluster.path.parent / "group_vars"
    variables.mkdir()
    (variables / "all.yml").write_text("site_a: 1\n", encoding="utf-8")
    checked = replace(cluster, sums=file_sums(cluster.path))
    (variables / "all.yml").write_text("site_a: 2\n", encoding="utf-8")
    runner = FakeRunner(["results"])

    with pytest.raises(PlanError, match=r"group_vars/all.yml was changed after it was checked"):
        run(checked, runner)

    assert runner.jobs == []
    assert list(cluster.state_dir.glob("runs/*/inventory")) == []


def test_a_lock_that_the_caller_holds_is_not_taken_again(cluster: Cluster) -> None:
    """The run goes on under it, with the id that the holder is known by, and it stays held."""
    with cluster_lock(cluster.state_dir, verb="node add x", run="20261111T000000Z-0000") as held:
        plan = make_plan(cluster)
        runner = FakeRunner(["results"])
        events: list[Event] = []
        report = apply_plan(cluster, plan, Options(), on_event=events.append, cancel=threading.Event(), runner=runner, lock=held)
        holder = read_holder(cluster.state_dir)

    assert report.run == held.run
    assert holder
    assert holder.run == held.run


def test_a_held_lock_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """cluster_name was changed between the lock and the run: nothing runs."""
    events: list[Event] = []
    with (
        cluster_lock(tmp_path / "other", verb="v", run="r") as held,
        pytest.raises(PlanError, match=r"cluster_name in hosts.yaml was changed to small in the meantime"),
    ):
        apply_plan(cluster, make_plan(cluster), Options(), on_event=events.append, cancel=threading.Event(), lock=held)


def test_ansible_killed_by_a_signal_is_said_so(cluster: Cluster) -> None:
    """The problem is the signal, not the last lines that Ansible printed."""

    class Killed(FakeRunner):
        def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
            super().run(job, on_event, cancel)
            (job.artifacts_dir / "stdout").write_text("TASK [Something] ***\n", encoding="utf-8")
            return 137

    report, _ = run(cluster, Killed(["serial"], length=6))

    assert (report.exit_code, report.problem) == (4, "Ansible was killed (signal 9)")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LC_ALL": "", "LC_CTYPE": "de_DE.ISO-8859-1", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LANG": "de_DE.UTF-8"}, None),
        ({"LC_ALL": "en_US.utf8", "LANG": "C"}, "en_US.utf8"),
    ],
)
def test_ansible_gets_a_locale_of_utf8(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None) -> None:
    """Ansible does not start without one; a locale of UTF-8 stays the user's own."""
    for word in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(word, raising=False)
    for word, value in given.items():
        monkeypatch.setenv(word, value)

    assert ansible_environment(Path("/state/known_hosts"), Path("/private")).get("LC_ALL") == expected
