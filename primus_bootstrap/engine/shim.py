"""Stands between the engine and `ansible-playbook`, and lets nothing of a run outlive it; standard library only.

Ansible's workers call setsid and its ssh connections go to the background, so killing the process that was started, or
its group, leaves them changing hosts. This program therefore

* is told by the kernel when the engine dies, even by SIGKILL (PR_SET_PDEATHSIG);
* adopts every process below it whose parent died (PR_SET_CHILD_SUBREAPER), so that none can leave its sight;
* holds `lock.children` and hands the locked descriptor on: the lock is held for as long as one of them lives;
* on SIGTERM tells Ansible once, waits, then kills what is left; at any end it removes the run's private folder, and
  what ansible-runner kept of events where the engine is no longer there to do it.

Run as `python -I shim.py PROGRAM ARGUMENTS`; its settings come in `PRIMUS_SHIM`, a JSON object: `parent` (pid of the
engine), `lock` and `private` (paths), `leftovers` (paths that an engine that died leaves), `grace_s`.
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
PR_SET_CHILD_SUBREAPER = 36

_TOLD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WATCHED = {*_TOLD, signal.SIGCHLD}
_KILL_LIMIT_S = 20.0

PID_FILE = "shim.pid"


def main(argv: list[str]) -> int:
    """Run the program to its end and return its exit status, 128 + signal where a signal ended it."""
    settings = json.loads(os.environ.pop("PRIMUS_SHIM"))
    private = Path(settings["private"])
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        if os.getppid() != settings["parent"]:  # it died before the kernel was asked to tell
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
    """Let Ansible's main process die with this one, and give it back the signals that are blocked here."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def prctl(option: int, value: int) -> None:
    """Set a property of this process that the kernel keeps."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _watch(child: subprocess.Popen[bytes], grace_s: float) -> int:
    """Wait for the program; when told to end, tell it once and give it `grace_s` seconds before it is killed."""
    deadline = float("inf")
    while True:
        got = signal.sigtimedwait(_WATCHED, 1.0)
        if (status := _reap(child.pid)) is not None:
            return status
        if got is not None and got.si_signo in _TOLD and deadline == float("inf"):
            deadline = time.monotonic() + grace_s
            _send(child.pid, signal.SIGTERM)
        if time.monotonic() > deadline:
            _send(child.pid, signal.SIGKILL)


def _reap(pid: int | None = None) -> int | None:
    """Collect every process that ended below; return the exit status of `pid` if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                found = code if code >= 0 else 128 - code
    return found


def _kill_descendants() -> None:
    """Kill what is still below until nothing is: whoever loses its parent becomes a child of this process."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    while (below := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in below:
            _send(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()


def descendants(root: int) -> list[int]:
    """Return every process below one, zombies included."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, not paths
        if entry.isdigit() and (parent := _parent(int(entry))):
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _parent(pid: int) -> int:
    """Return the parent's pid, 0 where the process is gone; a zombie counts until it has been collected."""
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
