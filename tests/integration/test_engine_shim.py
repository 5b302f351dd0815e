"""The shim with real processes: nothing that it started outlives it, and the lock is held while any of it lives."""

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
# Leaves a process behind as Ansible's workers and ssh do: in a session of its own, its parent gone.
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
def place(tmp_path: Path) -> Iterator[Path]:
    """Give a folder, and end whatever a failing test leaves."""
    yield tmp_path
    for pid in started(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(place: Path, *, parent: int | None = None, grace_s: float = 5.0) -> dict[str, str]:
    """Return the environment of a shim, marked with the folder."""
    (place / "private").mkdir(exist_ok=True)
    (place / "leftover").touch()
    settings = {
        "parent": os.getpid() if parent is None else parent,
        "lock": str(place / "lock"),
        "private": str(place / "private"),
        "leftovers": [str(place / "leftover")],
        "grace_s": grace_s,
    }
    return {**os.environ, "PRIMUS_SHIM": json.dumps(settings), "PRIMUS_TEST_MARK": str(place)}


def started(place: Path) -> list[int]:
    """Return the living processes that carry the folder's mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"PRIMUS_TEST_MARK={place}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def is_locked(place: Path) -> bool:
    """Tell whether somebody holds the lock."""
    with (place / "lock").open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(("program", "status"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_exit_status_is_passed_on(place: Path, program: str, status: int) -> None:
    """The program's own status, and 128 + signal where a signal ended it; the private folder is gone."""
    done = subprocess.run([*SHIM, sys.executable, "-c", program], env=environment(place), check=False)

    assert done.returncode == status
    assert not (place / "private").exists()
    assert (place / "leftover").exists()


def test_what_the_program_left_running_is_ended(place: Path) -> None:
    """A process in a session of its own, whose parent is gone, is ended when the program ends."""
    done = subprocess.run([*SHIM, sys.executable, "-c", DETACHED], env=environment(place), check=False, timeout=30)

    assert (done.returncode, started(place)) == (0, [])


def test_a_parent_killed_without_a_word_ends_everything(place: Path) -> None:
    """No terminal hangs up and no pipe breaks here: the kernel alone tells the shim. Leftovers of the parent go too."""
    parent = "import os, subprocess, sys, json\nsettings = json.loads(os.environ['PRIMUS_SHIM'])\nsettings['parent'] = os.getpid()\n"
    parent += (
        "os.environ['PRIMUS_SHIM'] = json.dumps(settings)\nsubprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)\n"
    )
    command = [sys.executable, "-c", parent, *SHIM, sys.executable, "-c", DETACHED + STAY]
    with subprocess.Popen(command, env=environment(place)) as process:
        until(lambda: len(started(place)) == 4, "parent, shim, program, and what it detached")
        process.kill()

    until(lambda: started(place) == [], "the end of all", limit_s=10)
    assert not is_locked(place)
    assert not (place / "leftover").exists()


def test_a_parent_that_died_before_the_shim_began(place: Path) -> None:
    """The program is not started at all."""
    done = subprocess.run([*SHIM, "touch", str(place / "ran")], env=environment(place, parent=1), check=False)

    assert done.returncode == 128 + signal.SIGTERM
    assert not (place / "ran").exists()


def test_sigterm_reaches_the_program_once(place: Path) -> None:
    """The program may end in its own way, and its status is passed on; further signals change nothing."""
    program = "import signal, sys, time, pathlib\ncount = []\nsignal.signal(signal.SIGTERM, lambda *_: count.append(1))\n"
    program += f"pathlib.Path('{place}/ready').touch()\nwhile not count: time.sleep(0.05)\ntime.sleep(1)\nsys.exit(40 + len(count))\n"
    with subprocess.Popen([*SHIM, sys.executable, "-c", program], env=environment(place)) as process:
        until((place / "ready").exists, "the program")
        for _ in range(3):
            process.terminate()
            time.sleep(0.2)

    assert process.returncode == 41


def test_a_program_that_does_not_listen_is_killed_after_the_grace(place: Path) -> None:
    """It ignores SIGTERM: it is killed, and all below it."""
    program = (
        f"import signal, pathlib\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{DETACHED}pathlib.Path('{place}/ready').touch()\n{STAY}"
    )
    with subprocess.Popen([*SHIM, sys.executable, "-c", program], env=environment(place, grace_s=0.5)) as process:
        until((place / "ready").exists, "the program")
        process.terminate()
        process.wait(15)

    assert (process.returncode, started(place)) == (137, [])


def test_the_lock_is_held_for_as_long_as_anything_lives(place: Path) -> None:
    """SIGKILL of the shim itself: the program dies with it; what had detached itself still holds the lock until it ends."""
    with subprocess.Popen([*SHIM, sys.executable, "-c", DETACHED + STAY], env=environment(place)) as process:
        until(lambda: len(started(place)) == 3, "shim, program, and what it detached")
        process.kill()

    until(lambda: len(started(place)) == 1, "the end of shim and program", limit_s=10)
    assert is_locked(place)
    os.kill(started(place)[0], signal.SIGKILL)
    until(lambda: not is_locked(place), "the lock", limit_s=10)
