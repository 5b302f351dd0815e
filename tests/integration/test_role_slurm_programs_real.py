"""Programs that slurmd starts on a node (health check, epilog, task prolog), on real processes and files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_slurm_programs import FILES, epilog
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def leftover() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Real processes that end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(environment: dict[str, str], code: str = "") -> subprocess.Popen[bytes]:
    """Start a process with this environment only; return when its program runs."""
    program = f"{code}\nimport time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_files_of_the_account_in_shared_folders_are_removed_without_following_links(tmp_path: Path) -> None:
    """Entries of the account and its subordinate ids are removed; link targets and foreign entries stay."""
    if os.geteuid():
        pytest.skip("needs root, to have files of two accounts")
    shared, kept = tmp_path / "shared", tmp_path / "kept"
    (shared / "mine" / "below").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").write_text("")
    (shared / "mine" / "link").symlink_to(kept)
    (shared / "link").symlink_to(kept)
    (shared / "theirs").write_text("")
    (shared / "from a namespace").mkdir()
    for path in (shared / "mine", shared / "link", kept):
        os.chown(path, 4999, 4999, follow_symlinks=False)
    os.chown(shared / "from a namespace", 165599, 165599)
    numbers = [range(4999, 5000), range(165536, 231072)]
    found = epilog.find_files([str(shared), str(tmp_path / "none")], numbers)
    removed = epilog.remove_files(found, numbers)

    assert (removed, [path.name for path in shared.iterdir()]) == (3, ["theirs"])
    assert (kept / "file").exists()


def test_deeply_nested_folders_do_not_fail_the_epilog(tmp_path: Path) -> None:
    """The depth exceeds Python's recursion limit. A failed epilog would drain the node."""
    (tmp_path / "deep").mkdir()
    folder = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("a", dir_fd=folder)
        outer, folder = folder, os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(outer)
    os.close(folder)

    assert epilog.remove_files([(str(tmp_path / "deep"), True)], [range(os.getuid(), os.getuid() + 1)]) == 1
    assert not (tmp_path / "deep").exists()


def test_epilog_sends_sigterm_first(leftover: list[subprocess.Popen[bytes]]) -> None:
    """Daemons of the job end, also if they ignore SIGTERM. Other jobs and unmarked processes stay."""
    job = {"SLURM_JOB_ID": "71", "SLURMD_NODENAME": "n2"}
    mine, stubborn = start(job), start(job, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    others = [start({**job, "SLURM_JOB_ID": "72"}), start({"SLURM_JOB_ID": "71"}), start({})]
    leftover += [mine, stubborn, *others]
    found = epilog.processes_to_end(epilog.processes(epilog.PROC, os.getuid(), "71"), all_of_them=False)
    epilog.end(epilog.PROC, found)

    assert [process.pid for process in found] == sorted([mine.pid, stubborn.pid])
    assert (mine.wait(5), stubborn.wait(5)) == (-15, -9)
    assert [process.poll() for process in others] == [None, None, None]


def test_epilog_ignores_system_accounts(leftover: list[subprocess.Popen[bytes]]) -> None:
    """It also succeeds for any other input."""
    mine = start({"SLURM_JOB_ID": "71", "SLURMD_NODENAME": "n2"})
    leftover.append(mine)
    for environment in ({"SLURM_JOB_ID": "71", "SLURM_JOB_UID": "0"}, {"SLURM_JOB_ID": "71"}, {}):
        assert subprocess.run([sys.executable, "-I", FILES / "epilog.py"], env=environment, check=False, timeout=120).returncode == 0

    assert mine.poll() is None


def task_prolog(folder: Path, environment: dict[str, str]) -> list[str]:
    """Return the output of the task prolog for this environment and these profile files."""
    text = (FILES / "task_prolog.sh").read_text(encoding="utf-8").replace("/etc/primus/env.d", str(folder))
    done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=True, env=environment, timeout=120)
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


def test_task_prolog_prints_the_profile_and_keeps_job_values(tmp_path: Path) -> None:
    """Later files win, quotes follow systemd, and existing variables stay, also empty ones."""
    (tmp_path / "10-base.env").write_text('# why\nNCCL_DEBUG="WARN"\nA_PATH="/x y"\nODD="a\\"b\\$c"\n', encoding="utf-8")
    (tmp_path / "90-site.env").write_text('A_PATH="/z"\nKEPT="profile"\n', encoding="utf-8")
    (tmp_path / "readme").write_text("NOT=read\n", encoding="utf-8")

    assert task_prolog(tmp_path, {"NCCL_DEBUG": "", "KEPT": "job"}) == ["export A_PATH=/z", 'export ODD=a"b$c']


def test_task_prolog_prints_nothing_without_a_profile(tmp_path: Path) -> None:
    """A node without the role gpu_env."""
    assert task_prolog(tmp_path / "absent", {}) == []


# Starts its successor and ends; ignores SIGTERM and adds a byte to the file, which grows while the chain lives.
CHAIN = """
import os, signal, sys, time
os.setgroups([])
os.setresuid(*[int(sys.argv[2])] * 3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 60
counter = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(counter, b".")
    time.sleep(0.001)
"""


def test_chain_of_short_processes_is_ended(tmp_path: Path) -> None:
    """Each lives for a millisecond, so every list is outdated."""
    if os.geteuid():
        pytest.skip("needs root, to have processes of another account")
    uid, counter = 64973, tmp_path / "counter"
    counter.write_text("")
    os.chown(counter, uid, uid)
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    subprocess.run([sys.executable, "-I", "-c", CHAIN, counter, str(uid)], check=True, timeout=60)
    until(lambda: counter.stat().st_size > 20, "the chain of processes")
    epilog.end_remaining(uid, lambda: epilog.processes(epilog.PROC, uid, "71"), lambda: True)
    length = counter.stat().st_size
    time.sleep(0.5)

    assert counter.stat().st_size == length
    until(lambda: epilog.processes(epilog.PROC, uid, "71") == [], "the end of its processes")


HEADLESS = """
import ctypes, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_process_with_ended_main_thread_is_detected() -> None:
    """/proc shows a zombie without environment; another thread runs."""
    job = {"SLURM_JOB_ID": "71", "SLURMD_NODENAME": "n2"}
    process = subprocess.Popen([sys.executable, "-c", HEADLESS], env=job, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "the end of its first thread")
    try:
        found = epilog.processes_to_end(epilog.processes(epilog.PROC, os.getuid(), "71"), all_of_them=False)
        epilog.end(epilog.PROC, found)

        assert [one.pid for one in found] == [process.pid]
        assert process.wait(5) == -9
    finally:
        process.kill()
        process.wait()
