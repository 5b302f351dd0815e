"""Programs that slurmd starts on a node: health check, epilog and task prolog."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILES = content.roles_dir() / "slurm" / "files"
# As scontrol 22.05.8 prints a node on one line, shortened.
NODE = "NodeName=n2 CPUTot=16 State={state} ThreadsPerCore=1 Reason={reason} [root@2026-11-22T01:00:00]"
DISK = "disk /: 0.1 GiB are free, fewer than 1"


def load(path: Path) -> Any:
    """Import a program with its sibling modules, as on a node."""
    if str(FILES) not in sys.path:
        sys.path.append(str(FILES))
    return load_file(path, f"slurm_{path.stem}")


health: Any = load(FILES / "health.py")
epilog: Any = load(FILES / "epilog.py")


class Host:
    """A node with one health result and one state at the controllers; records updates."""

    def __init__(self, gate: tuple[int | None, str], state: str, reason: str = "") -> None:
        """Store the answers."""
        self.gate, self.state, self.reason = gate, state, reason
        self.updates: list[str] = []

    def __call__(self, words: Sequence[str], _limit_s: float) -> Any:
        """Answer one command."""
        answer = sys.modules["shared.slurm_commands"].Answer
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
def test_only_failures_drain_and_only_own_drains_are_resumed(
    gate: tuple[int | None, str], state: str, reason: str, updates: list[str], tmp_path: Path
) -> None:
    """Unknown changes nothing, other reasons stay, and a new reason is updated."""
    fragment = tmp_path / "node.json"
    fragment.write_text(json.dumps({"name": "n2"}), encoding="utf-8")
    host = Host(gate, state, reason)

    assert health.main(host, fragment) == 0
    assert host.updates == updates


def in_proc(root: Path, pid: int, *, environ: str = "", cgroup: str = "0::/user.slice", started: int = 5) -> None:
    """Write a process of this account into a fake /proc."""
    folder = root / str(pid)
    folder.mkdir()
    (folder / "environ").write_text(environ.replace(" ", "\0"))
    (folder / "cgroup").write_bytes(f"{cgroup}\n".encode() + b"\xff")
    (folder / "stat").write_text(f"{pid} (a (b) c) S {' '.join(['0'] * 18)} {started} 0\n")


def test_epilog_ends_all_processes_after_the_last_job_of_an_account(tmp_path: Path) -> None:
    """Environment and session do not matter. Units of watched jobs stay."""
    mark = "SLURM_JOB_ID=71 SLURMD_NODENAME=n2"
    in_proc(tmp_path, 10, environ=mark)
    in_proc(tmp_path, 11)
    in_proc(tmp_path, 12, environ="SLURM_JOB_ID=72 SLURMD_NODENAME=n2")
    in_proc(tmp_path, 13, cgroup="1:name=systemd:/system.slice/primus-job-a-0a1b2c-1.service")
    (tmp_path / "self").mkdir()
    found = epilog.processes(tmp_path, os.getuid(), "71")

    assert [process.pid for process in epilog.processes_to_end(found, all_of_them=True)] == [10, 11, 12]
    assert [process.pid for process in epilog.processes_to_end(found, all_of_them=False)] == [10]


def test_process_in_a_user_namespace_belongs_to_its_account(tmp_path: Path) -> None:
    """Subordinate ids count. Ids of other accounts, and ranges that start at system ids, do not."""
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


def test_other_jobs_of_the_account_are_listed_by_slurmd(tmp_path: Path) -> None:
    """The kernel gives the owner of a listed process. For jobs without one, the controller is queried."""
    in_proc(tmp_path, 10)
    head = "PID      JOBID    STEPID   LOCALID GLOBALID\n"
    mine = os.getuid()
    commands: list[list[str]] = []

    def owners(*uids: int) -> Any:
        def ask(jobs: list[str]) -> set[str]:
            commands.append(jobs)
            return {str(uid) for uid in uids}

        return ask

    assert not epilog.has_other_jobs(f"{head}10 71 batch 0 0\n", tmp_path, mine, "71", owners())
    assert epilog.has_other_jobs(f"{head}10 72 batch 0 0\n", tmp_path, mine, "71", owners())
    assert not epilog.has_other_jobs(head, tmp_path, mine, "71", owners(mine))
    assert commands == []
    assert epilog.has_other_jobs(f"{head}-1 72 extern 0 0\n99 72 extern - -\n", tmp_path, mine, "71", owners(mine))
    assert not epilog.has_other_jobs(f"{head}-1 72 extern 0 0\n", tmp_path, mine, "71", owners(mine + 1))
    assert commands == [["72"], ["72"]]
    assert epilog.has_other_jobs(f"{head}-1 72 extern 0 0\n", tmp_path, mine, "71", lambda _: None)


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
def test_user_unit_does_not_protect_processes(path: str, *, is_foreign: bool) -> None:
    """Only units below system.slice are root's; users can create units of the same name below user.slice."""
    assert epilog.in_other_unit(f"{path}\n") is is_foreign


def test_reused_process_id_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may end after the listing and its id be reused."""
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


def test_newer_entries_are_not_removed(tmp_path: Path) -> None:
    """A job that starts during the cleanup keeps its files, as do reused names of other accounts."""
    (tmp_path / "old").write_text("")
    found = epilog.find_files([str(tmp_path)], [range(os.getuid(), os.getuid() + 1)])
    (tmp_path / "new").write_text("")

    assert epilog.remove_files(found, [range(os.getuid() + 1, os.getuid() + 2)]) == 0
    assert epilog.remove_files(found, [range(os.getuid(), os.getuid() + 1)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_without_settings_only_marked_processes_are_ended(tmp_path: Path) -> None:
    """Missing or damaged settings: the host is treated as a login host."""
    path = tmp_path / "settings.json"
    assert epilog.read_settings(path) == epilog.Settings(login=True)
    path.write_bytes(b"\xff{")
    assert epilog.read_settings(path) == epilog.Settings(login=True)
    path.write_text('{"spare": ["ops"], "login": false}')
    assert epilog.read_settings(path) == epilog.Settings(("ops",))


def test_fuse_mounts_of_the_account_in_shared_folders_are_found(tmp_path: Path) -> None:
    """Mounts of other accounts, other file systems and mounts in folders of users are left alone. Blanks in a path are escaped."""
    shared = epilog.SHARED[0]
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"36 25 0:50 / {shared}/ada\\040m rw,nosuid shared:1 - fuse.sshfs host: rw,user_id=4999,group_id=100\n"
        f"37 25 0:51 / {shared}/bob rw,nosuid - fuse /dev/fuse rw,user_id=5000,group_id=100\n"
        "38 25 0:52 / /jfs rw - fuse.juicefs JuiceFS:jfs rw,user_id=0,group_id=0\n"
        f"39 25 0:53 / {shared}/user_id=4999 rw - tmpfs tmpfs rw,uid=4999\n"
        f"40 25 0:54 / {shared}/folder/jfs rw - fuse /dev/fuse rw,user_id=4999,group_id=100\n"
        "damaged\n"
    )

    assert epilog.fuse_mounts([range(4999, 5000)], mounts) == [f"{shared}/ada m"]
    assert epilog.fuse_mounts([range(4999, 5000)], tmp_path / "none") == []


def test_epilog_detaches_mounts_and_ends_late_forks_of_the_last_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without control groups: a process of an SSH session may fork when it is ended."""
    calls: list[tuple[str, object]] = []
    shared = f"{epilog.SHARED[0]}/m"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_UID", "4999")
    monkeypatch.setattr(epilog, "read_settings", epilog.Settings)
    monkeypatch.setattr(epilog, "processes", lambda *_: [])
    monkeypatch.setattr(epilog, "find_files", lambda *_: [])
    monkeypatch.setattr(epilog, "fuse_mounts", lambda *_: [shared])
    monkeypatch.setattr(epilog, "is_last", lambda *_: True)
    for name, result in (("end_remaining", set()), ("detach", None), ("remove_files", 0)):

        def record(first: object, *_: object, name: str = name, result: object = result) -> object:
            calls.append((name, first))
            return result

        monkeypatch.setattr(epilog, name, record)
    monkeypatch.setattr(epilog.syslog, "syslog", lambda *_: None)

    assert epilog.main() == 0
    assert calls == [("end_remaining", 4999), ("detach", [shared]), ("remove_files", [(shared, True)])]


def test_process_chain_stays_if_a_new_job_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the new job cannot be distinguished."""
    killed: list[int] = []
    monkeypatch.setattr(epilog, "kill_all_of", killed.append)
    monkeypatch.setattr(epilog.time, "sleep", lambda _: None)
    process = epilog.Process(999999999, "1", marked=False, foreign=False, owner=165536)

    assert epilog.end_remaining(4999, lambda: [process], lambda: False) == set()
    assert killed == []
    assert epilog.end_remaining(4999, lambda: [process], lambda: True) == {999999999}
    assert set(killed) == {4999, 165536}
