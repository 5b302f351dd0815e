"""primus_bootstrap.core.child_processes: starting, supervising and ending real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core import child_processes
from tests.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT = "trap 'exit 75' TERM; echo ready > ready; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; echo ready > ready; sleep 600 & wait; sleep 600"
# The module adopts processes of this test run, so each case runs in a process of its own.
PROGRAM = """
import sys
from primus_bootstrap.core import child_processes as cp
script, grace_s = sys.argv[1], float(sys.argv[2])
with cp.StopSignals() as signals:
    cp.become_subreaper()
    child = cp.start(["bash", "-c", script], {"PATH": "/usr/bin:/bin"}, folder=".")
    code = cp.supervise(child, signals, grace_s=grace_s)
    print(code, signals.first, signals.repeated, len(cp.end_descendants(1)))
"""


def supervised(folder: Path, script: str, grace_s: float) -> subprocess.Popen[str]:
    """Supervise a shell script in a process of its own; return once the script is ready."""
    argv = [sys.executable, "-c", PROGRAM, script, str(grace_s)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8", errors="replace")
    until((folder / "ready").is_file, "the start of the script")
    return process


def test_sigterm_is_passed_on_and_the_exit_code_is_returned(tmp_path: Path) -> None:
    """The program writes its checkpoint within the grace time."""
    process = supervised(tmp_path, CHECKPOINT, LIMIT_S)
    process.send_signal(signal.SIGTERM)

    assert process.communicate(timeout=LIMIT_S)[0].split() == ["75", str(signal.SIGTERM), "False", "0"]


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    """Its children are killed, too."""
    process = supervised(tmp_path, DEAF, 0.2)
    process.send_signal(signal.SIGINT)
    code, first, *_, left = process.communicate(timeout=LIMIT_S)[0].split()

    assert (code, first, left) == (str(-signal.SIGKILL), str(signal.SIGINT), "0")


def test_a_repeated_signal_does_not_wait_for_the_grace_time(tmp_path: Path) -> None:
    """The same signal within REPEAT_AFTER_S is one request; a later one ends everything."""
    process = supervised(tmp_path, DEAF, 600)
    process.send_signal(signal.SIGTERM)
    time.sleep(child_processes.REPEAT_AFTER_S + 0.3)
    process.send_signal(signal.SIGTERM)

    assert process.communicate(timeout=LIMIT_S)[0].split()[0] == str(-signal.SIGKILL)


def test_a_child_gets_sigterm_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    """The kernel sends it."""
    process = supervised(tmp_path, "trap 'echo end > end; exit' TERM; echo ready > ready; while :; do sleep 0.1; done", 600)
    process.kill()
    process.communicate(timeout=LIMIT_S)

    until((tmp_path / "end").is_file, "the end of the script")


@pytest.mark.parametrize(("seconds", "expected"), [(0, 3), (600, None)])
def test_a_forked_child_is_waited_for_with_a_limit(seconds: float, expected: int | None) -> None:
    """A child that runs on is killed with its session."""
    pid = child_processes.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(3)
    code = child_processes.wait_for(pid, LIMIT_S if expected else 0.1)

    assert code == expected
    assert expected or child_processes.kill_session(pid, LIMIT_S)


def test_descendants_and_children_of_a_process() -> None:
    """Grandchildren are descendants; a process that has ended is neither."""
    process = subprocess.Popen(["bash", "-c", "sleep 600 & wait"])
    until(lambda: len(child_processes.children_of(process.pid)) == 1, "the start of the child")
    (child,) = child_processes.children_of(process.pid)
    below = child_processes.descendants(os.getpid())
    child_processes.send_signal((process.pid, child), signal.SIGKILL)
    process.wait(LIMIT_S)

    assert {process.pid, child} <= set(below)
    assert child_processes.descendants(process.pid) == ()
