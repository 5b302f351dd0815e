"""The supervisor with real processes: none of them outlives it, and the lock is held until the last one has ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.engine import shim
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIM = [sys.executable, "-I", str(Path(shim.__file__).resolve())]
# Leaves a process in its own session without a parent, like Ansible's workers and ssh.
DETACHED = """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
"""
STAY = "time.sleep(300)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder, and kill the processes that a failed test leaves."""
    yield tmp_path
    for pid in marked_processes(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(folder: Path, *, parent: int | None = None, grace_s: float = 5.0) -> dict[str, str]:
    """Return the environment of a supervisor, marked with the folder."""
    (folder / "private").mkdir(exist_ok=True)
    (folder / "leftover").touch()
    settings = {
        "parent": os.getpid() if parent is None else parent,
        "lock": str(folder / "lock"),
        "private": str(folder / "private"),
        "leftovers": [str(folder / "leftover")],
        "grace_s": grace_s,
    }
    return {**os.environ, "PRIMUS_SHIM": json.dumps(settings), "PRIMUS_TEST_MARK": str(folder)}


def marked_processes(folder: Path) -> list[int]:
    """Return the living processes whose environment has the mark of the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"PRIMUS_TEST_MARK={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock."""
    with (folder / "lock").open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(("program", "status"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_passed_on(folder: Path, program: str, status: int) -> None:
    """It is the program's exit code, or 128 + signal number. The private folder is deleted."""
    done = subprocess.run([*SHIM, sys.executable, "-c", program], env=environment(folder), check=False)

    assert done.returncode == status
    assert not (folder / "private").exists()
    assert (folder / "leftover").exists()


def test_remaining_processes_are_killed(folder: Path) -> None:
    """A process in its own session without a parent is killed when the program ends."""
    done = subprocess.run([*SHIM, sys.executable, "-c", DETACHED], env=environment(folder), check=False, timeout=30)

    assert (done.returncode, marked_processes(folder)) == (0, [])


def test_everything_is_killed_after_the_parent_was_killed(folder: Path) -> None:
    """Only the kernel notifies the supervisor. Leftovers of the parent are deleted."""
    parent = "import os, subprocess, sys, json\nsettings = json.loads(os.environ['PRIMUS_SHIM'])\nsettings['parent'] = os.getpid()\n"
    parent += (
        "os.environ['PRIMUS_SHIM'] = json.dumps(settings)\nsubprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)\n"
    )
    command = [sys.executable, "-c", parent, *SHIM, sys.executable, "-c", DETACHED + STAY]
    with subprocess.Popen(command, env=environment(folder)) as process:
        until(lambda: len(marked_processes(folder)) == 4, "parent, supervisor, program and detached process")
        process.kill()

    until(lambda: marked_processes(folder) == [], "the end of all", limit_s=10)
    assert not is_locked(folder)
    assert not (folder / "leftover").exists()


def test_the_program_is_not_started_if_the_parent_is_dead(folder: Path) -> None:
    """The supervisor ends at once."""
    done = subprocess.run([*SHIM, "touch", str(folder / "ran")], env=environment(folder, parent=1), check=False)

    assert done.returncode == 128 + signal.SIGTERM
    assert not (folder / "ran").exists()


def test_sigterm_reaches_the_program_once(folder: Path) -> None:
    """The program may end by itself, and its exit code is passed on. Further signals have no effect."""
    program = "import signal, sys, time, pathlib\ncount = []\nsignal.signal(signal.SIGTERM, lambda *_: count.append(1))\n"
    program += f"pathlib.Path('{folder}/ready').touch()\nwhile not count: time.sleep(0.05)\ntime.sleep(1)\nsys.exit(40 + len(count))\n"
    with subprocess.Popen([*SHIM, sys.executable, "-c", program], env=environment(folder)) as process:
        until((folder / "ready").exists, "the program")
        for _ in range(3):
            process.terminate()
            time.sleep(0.2)

    assert process.returncode == 41


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(folder: Path) -> None:
    """All its descendants are killed as well."""
    program = (
        f"import signal, pathlib\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{DETACHED}pathlib.Path('{folder}/ready').touch()\n{STAY}"
    )
    with subprocess.Popen([*SHIM, sys.executable, "-c", program], env=environment(folder, grace_s=0.5)) as process:
        until((folder / "ready").exists, "the program")
        process.terminate()
        process.wait(15)

    assert (process.returncode, marked_processes(folder)) == (137, [])


def test_the_lock_is_held_until_the_last_process_has_ended(folder: Path) -> None:
    """After SIGKILL of the supervisor the program dies, but a detached process still holds the lock."""
    with subprocess.Popen([*SHIM, sys.executable, "-c", DETACHED + STAY], env=environment(folder)) as process:
        until(lambda: len(marked_processes(folder)) == 3, "supervisor, program and detached process")
        process.kill()

    until(lambda: len(marked_processes(folder)) == 1, "the end of supervisor and program", limit_s=10)
    assert is_locked(folder)
    os.kill(marked_processes(folder)[0], signal.SIGKILL)
    until(lambda: not is_locked(folder), "the lock", limit_s=10)
