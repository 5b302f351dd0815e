"""Supervises `ansible-playbook` so that no process of a run outlives it.

It is started as a file in Python's isolated mode, and imports nothing of the package: an installation that is replaced during a run
cannot stop its supervision. So it repeats a little of `core.child_processes`.

Ansible's workers call setsid and its ssh connections run in the background. Killing the process that was started, or its
group, would leave them changing hosts. This program therefore

* receives a signal from the kernel when the engine dies, even by SIGKILL (PR_SET_PDEATHSIG);
* adopts every descendant whose parent died (PR_SET_CHILD_SUBREAPER);
* locks `lock.children` and passes the descriptor on, so the file stays locked until the last descendant has ended;
* on SIGTERM sends SIGTERM to Ansible, waits, then kills the remaining processes;
* at its end deletes the run's private folder, and the leftovers of ansible-runner if the engine has died.

Usage: `python -I shim.py PROGRAM ARGUMENTS`. The variable `PRIMUS_SHIM` contains a JSON object: `parent` (pid of the
engine), `lock` and `private` (paths), `leftovers` (paths to delete if the engine died), `grace_s`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# Values from <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_HANDLED_SIGNALS = {*_STOP_SIGNALS, signal.SIGCHLD}
_KILL_LIMIT_S = 20.0

PID_FILE = "shim.pid"


def main(argv: list[str]) -> int:
    """Run the program and return its exit code, or 128 + signal number."""
    settings = json.loads(os.environ.pop("PRIMUS_SHIM"))
    private = Path(settings["private"])
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        if os.getppid() != settings["parent"]:  # the engine died before the prctl call
            return 128 + signal.SIGTERM
        lock = os.open(settings["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (private / PID_FILE).write_text(str(os.getpid()), encoding="ascii")
        # The preexec_fn is safe: this process has one thread.
        with subprocess.Popen(argv, pass_fds=[lock], preexec_fn=_before_exec) as child:  # noqa: PLW1509
            status = _watch(child, float(settings["grace_s"]))
            _kill_descendants()
            child.returncode = status
        return status
    finally:
        shutil.rmtree(private, ignore_errors=True)
        if os.getppid() != settings["parent"]:
            for path in settings["leftovers"]:
                _remove(path)


def _remove(path: str) -> None:
    if Path(path).is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)


def _before_exec() -> None:
    """Make Ansible's main process die with this one, and unblock its signals."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)


def _prctl(option: int, value: int) -> None:
    """Set a kernel property of this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _watch(child: subprocess.Popen[bytes], grace_s: float) -> int:
    """Wait for the program and return its exit code; on a stop signal send SIGTERM, and SIGKILL `grace_s` seconds later."""
    deadline = float("inf")
    while True:
        received = signal.sigtimedwait(_HANDLED_SIGNALS, 1.0)
        if (status := _reap(child.pid)) is not None:
            return status
        if received is not None and received.si_signo in _STOP_SIGNALS and deadline == float("inf"):
            deadline = time.monotonic() + grace_s
            _send(child.pid, signal.SIGTERM)
        if time.monotonic() > deadline:
            _send(child.pid, signal.SIGKILL)


def _reap(pid: int | None = None) -> int | None:
    """Collect all ended children; return the exit code of `pid` if it is one of them."""
    exit_code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                exit_code = code if code >= 0 else 128 - code
    return exit_code


def _kill_descendants() -> None:
    """Kill all descendants; orphans become children of this process, so none is missed."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    while (below := _descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in below:
            _send(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()


def _descendants(root: int) -> list[int]:
    """Return all descendants of a process, including zombies."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, not paths
        if entry.isdigit() and (parent := _parent(int(entry))):
            children.setdefault(parent, []).append(int(entry))
    pids: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        pids += below
        queue += below
    return pids


def _parent(pid: int) -> int:
    """Return the pid of the parent, or 0 if the process does not exist; a zombie exists until it is collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
