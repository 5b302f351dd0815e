"""The programs that slurmd calls on a node: health, epilog and task prolog, as they lie in the role."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import util
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILES = content.roles_dir() / "slurm" / "files"
# As scontrol 22.05.8 prints a node on one line, shortened.
NODE = "NodeName=n2 CPUTot=16 State={state} ThreadsPerCore=1 Reason={reason} [root@2026-11-22T01:00:00]"
DISK = "disk /: 0.1 GiB are free, fewer than 1"


def load(path: Path) -> Any:
    """Import a program; what lies beside it on a node is found as it is there."""
    if str(FILES.parent / "module_utils") not in sys.path:
        sys.path.append(str(FILES.parent / "module_utils"))
    spec = util.spec_from_file_location(f"slurm_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


health: Any = load(FILES / "health.py")
epilog: Any = load(FILES / "epilog.py")


class Host:
    """A node whose gate gives one answer and whose controllers tell one state; what it asks them to change is remembered."""

    def __init__(self, gate: tuple[int | None, str], state: str, reason: str = "") -> None:
        """Keep the answers."""
        self.gate, self.state, self.reason = gate, state, reason
        self.updates: list[str] = []

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer one command."""
        answer = sys.modules["slurm_ask"].Answer
        if words[0] == health.GATE:
            return answer(*self.gate)
        if words[1] == "update":
            self.updates.append(" ".join(words[2:]))
            return answer(0, "")
        return answer(0, NODE.format(state=self.state, reason=self.reason))


@pytest.mark.parametrize(
    ("gate", "state", "reason", "updates"),
    [
        ((1, DISK), "IDLE", "", [f"NodeName=n2 State=DRAIN Reason=primus: health: {DISK}"]),
        ((1, DISK), "IDLE+DRAIN", "primus: health: clock", [f"NodeName=n2 State=DRAIN Reason=primus: health: {DISK}"]),
        ((1, DISK), "IDLE+DRAIN", f"primus: health: {DISK}", []),
        ((1, DISK), "IDLE+DRAIN", "new memory on Monday", []),
        ((0, "pass"), "IDLE+DRAIN", f"primus: health: {DISK}", ["NodeName=n2 State=RESUME"]),
        ((0, "pass"), "IDLE+DRAIN", "primus: removed", []),
        ((0, "pass"), "IDLE+DRAIN", "primus quarantine: fan", []),
        ((0, "pass"), "IDLE+DRAIN", "new memory on Monday", []),
        ((0, "pass"), "IDLE", "", []),
        ((3, "there is no health.json"), "IDLE", "", []),
        ((3, "stale"), "IDLE+DRAIN", f"primus: health: {DISK}", []),
        ((None, "timed out"), "IDLE+DRAIN", f"primus: health: {DISK}", []),
    ],
)
def test_only_a_fail_drains_and_only_our_own_drain_is_lifted(
    gate: tuple[int | None, str], state: str, reason: str, updates: list[str], tmp_path: Path
) -> None:
    """Unknown leaves the node as it is; another's reason stays; a changed reason is told."""
    fragment = tmp_path / "node.json"
    fragment.write_text(json.dumps({"name": "n2"}), encoding="utf-8")
    host = Host(gate, state, reason)

    assert health.main(host, fragment) == 0
    assert host.updates == updates


def in_proc(root: Path, pid: int, *, environ: str = "", cgroup: str = "0::/user.slice", started: int = 5) -> None:
    """Write a process of this account into a folder that stands for /proc."""
    folder = root / str(pid)
    folder.mkdir()
    (folder / "environ").write_text(environ.replace(" ", "\0"))
    (folder / "cgroup").write_bytes(f"{cgroup}\n".encode() + b"\xff")
    (folder / "stat").write_text(f"{pid} (a (b) c) S {' '.join(['0'] * 18)} {started} 0\n")


def test_the_epilog_ends_all_processes_of_an_account_after_its_last_job(tmp_path: Path) -> None:
    """Whatever a process has made of its environment and session; units of a watcher's job stay."""
    mark = "SLURM_JOB_ID=71 SLURMD_NODENAME=n2"
    in_proc(tmp_path, 10, environ=mark)
    in_proc(tmp_path, 11)
    in_proc(tmp_path, 12, environ="SLURM_JOB_ID=72 SLURMD_NODENAME=n2")
    in_proc(tmp_path, 13, cgroup="1:name=systemd:/system.slice/primus-job-a-0a1b2c-1.service")
    (tmp_path / "self").mkdir()
    found = epilog.processes(tmp_path, os.getuid(), "71")

    assert [process.pid for process in epilog.doomed(found, all_of_them=True)] == [10, 11, 12]
    assert [process.pid for process in epilog.doomed(found, all_of_them=False)] == [10]


def test_a_process_in_a_user_namespace_is_its_accounts(tmp_path: Path) -> None:
    """An account may take other numbers there; those of another account, and a range that begins among the system's, are not its own."""
    subuid = tmp_path / "subuid"
    subuid.write_bytes(b"eve:300000:10\nada:165536:65536\nada:0:5\nbroken\nada:x:1\n4101:500000:2\n\xff:1:1\n")
    found = epilog.owned_uids(4101, "ada", subuid)
    (tmp_path / "proc").mkdir()
    in_proc(tmp_path / "proc", 10)
    if os.geteuid() == 0:
        os.chown(tmp_path / "proc" / "10", 165542, -1)

    assert found == [range(4101, 4102), range(165536, 231072), range(500000, 500002)]
    assert epilog.owned_uids(4101, "ada", tmp_path / "none") == [range(4101, 4102)]
    if os.geteuid() == 0:
        assert [process.pid for process in epilog.processes(tmp_path / "proc", 4101, "71", found)] == [10]
        assert epilog.processes(tmp_path / "proc", 4101, "71") == []


def test_slurmd_says_whether_another_job_of_the_account_runs(tmp_path: Path) -> None:
    """Its list names processes and jobs; who owns a process the kernel says. Of a job without one the controller is asked."""
    in_proc(tmp_path, 10)
    head = "PID      JOBID    STEPID   LOCALID GLOBALID\n"
    mine = os.getuid()
    asked: list[list[str]] = []

    def owners(*uids: int) -> Any:
        def ask(jobs: list[str]) -> set[str]:
            asked.append(jobs)
            return {str(uid) for uid in uids}

        return ask

    assert not epilog.other_jobs(f"{head}10 71 batch 0 0\n", tmp_path, mine, "71", owners())
    assert epilog.other_jobs(f"{head}10 72 batch 0 0\n", tmp_path, mine, "71", owners())
    assert not epilog.other_jobs(head, tmp_path, mine, "71", owners(mine))
    assert asked == []
    assert epilog.other_jobs(f"{head}-1 72 extern 0 0\n99 72 extern - -\n", tmp_path, mine, "71", owners(mine))
    assert not epilog.other_jobs(f"{head}-1 72 extern 0 0\n", tmp_path, mine, "71", owners(mine + 1))
    assert asked == [["72"], ["72"]]
    assert epilog.other_jobs(f"{head}-1 72 extern 0 0\n", tmp_path, mine, "71", lambda _: None)


@pytest.mark.parametrize(
    ("path", "is_foreign"),
    [
        ("0::/system.slice/primus-job-a-0a1b2c-1.service", True),
        ("1:name=systemd:/libpod_parent/libpod-1/system.slice/system-primus\\x2dwatch.slice/primus-watch@a.service", True),
        ("0::/user.slice/user-4101.slice/user@4101.service/app.slice/primus-job-x.service", False),
        ("0::/user.slice/user-4101.slice/user@4101.service/system.slice/primus-job-x.service", False),
        ("0::/user.slice/user-4101.slice/user@4101.service/a:/system.slice/primus-job-x.service", False),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", False),
        ("0::/system.slice/ssh.service", False),
        ("0::/", False),
    ],
)
def test_a_unit_of_the_accounts_own_does_not_save_its_processes(path: str, *, is_foreign: bool) -> None:
    """Only units below system.slice are root's: `systemd-run --user --unit=primus-job-x` makes one of that name below user.slice."""
    assert epilog.in_other_unit(f"{path}\n") is is_foreign


def test_a_number_that_another_process_has_by_now_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the signal a process may end and its number be given to another."""
    sent: list[int] = []

    def kill(pid: int, _: int) -> None:
        sent.append(pid)

    monkeypatch.setattr(epilog.os, "kill", kill)
    in_proc(tmp_path, 10)
    in_proc(tmp_path, 11)
    found = epilog.processes(tmp_path, os.getuid(), "71")
    (tmp_path / "11" / "stat").write_text(f"11 (x) S {' '.join(['0'] * 18)} 99 0\n")
    epilog.send(tmp_path, found, signal.SIGTERM)

    assert sent == [10]


def test_what_came_after_the_look_is_not_removed(tmp_path: Path) -> None:
    """A job that begins while the one before is cleaned up keeps its files; so does another account that has taken a name."""
    (tmp_path / "old").write_text("")
    found = epilog.files_of([str(tmp_path)], [range(os.getuid(), os.getuid() + 1)])
    (tmp_path / "new").write_text("")

    assert epilog.remove_files(found, [range(os.getuid() + 1, os.getuid() + 2)]) == 0
    assert epilog.remove_files(found, [range(os.getuid(), os.getuid() + 1)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_without_settings_only_marked_processes_are_ended(tmp_path: Path) -> None:
    """A host to which the settings have not come, or come damaged, is treated as a login host."""
    path = tmp_path / "settings.json"
    assert epilog.read_settings(path) == epilog.Settings(login=True)
    path.write_bytes(b"\xff{")
    assert epilog.read_settings(path) == epilog.Settings(login=True)
    path.write_text('{"spare": ["ops"], "login": false}')
    assert epilog.read_settings(path) == epilog.Settings(("ops",))


def test_what_control_groups_hold_needs_no_second_look(tmp_path: Path) -> None:
    """Slurm ends it itself; where its settings cannot be read, the epilog does."""
    conf = tmp_path / "slurm.conf"
    assert not epilog.is_contained(conf)
    conf.write_text("ProctrackType=proctrack/linuxproc\n")
    assert not epilog.is_contained(conf)
    conf.write_text("ClusterName=a\nProctrackType = proctrack/cgroup\n")
    assert epilog.is_contained(conf)


def test_a_chain_is_left_alone_where_another_job_of_the_account_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to the new job cannot be told from it."""
    killed: list[int] = []
    monkeypatch.setattr(epilog, "kill_all_of", killed.append)
    monkeypatch.setattr(epilog.time, "sleep", lambda _: None)
    process = epilog.Process(999999999, "1", marked=False, foreign=False, owner=165536)

    assert epilog.end_rest(4999, lambda: [process], lambda: False) == set()
    assert killed == []
    assert epilog.end_rest(4999, lambda: [process], lambda: True) == {999999999}
    assert set(killed) == {4999, 165536}
