#!/usr/bin/python3 -I
"""Slurm's Epilog: end what a job left running on this node, and remove what its account left in shared folders of the node.

When the last job of an account on this node has ended, every process of that account is ended, whatever it has made of its environment or
session, and what it owns in /tmp, /var/tmp and /dev/shm is removed. While another job of the account runs here, only processes that carry
the job's own mark are ended. Which jobs run here slurmd says, never a process of a user.

Left alone: accounts of the system, accounts that the administrator names (`spare` in the settings), units of the watchers' jobs, and on
login hosts everything without the job's mark. It always ends with 0: a node is not drained because this program could not do its work.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import syslog
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PROC = Path("/proc")
SETTINGS = Path("/etc/primus/slurm_epilog.json")
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - what every account may write to
# Accounts of people begin here (login.defs, UID_MIN); what belongs to the system is left alone.
FIRST_UID = 1000
GRACE_S = 2.0
STEP_S = 0.1
ASK_S = 10.0
MOST_BYTES = 1 << 20
# Units of root's, in which a job of a watcher runs as its account: a process cannot put itself into one.
OTHER_UNITS = ("primus-job-", "primus-watch@")


@dataclass(frozen=True)
class Settings:
    """What the administrator has written: accounts that are left alone, and whether people log in to this host."""

    spare: tuple[str, ...] = ()
    login: bool = False


@dataclass(frozen=True)
class Process:
    """A process of the account; `started` tells it from a later one with its number. `marked`: slurmd started it for the job."""

    pid: int
    started: str
    marked: bool
    foreign: bool


def read_settings(path: Path = SETTINGS) -> Settings:
    """Return the settings; where they cannot be read, only processes with the job's mark are ended."""
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return Settings(tuple(map(str, data["spare"])), bool(data["login"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Settings(login=True)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def processes(proc: Path, uid: int, job: str) -> list[Process]:
    """Return the processes of an account; one that ends meanwhile is passed over. What they say of themselves is data, and bounded."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, IndexError):
            if folder.stat().st_uid != uid:
                continue
            words = dict(word.split(b"=", 1) for word in _read(folder / "environ").split(b"\0") if b"=" in word)
            groups = _read(folder / "cgroup").decode("utf-8", "replace")
            started = _read(folder / "stat").rpartition(b")")[2].split()[19].decode("ascii", "replace")
            marked = words.get(b"SLURM_JOB_ID") == job.encode() and b"SLURMD_NODENAME" in words
            found.append(Process(int(folder.name), started, marked, any(f"/{unit}" in groups for unit in OTHER_UNITS)))
    return sorted(found, key=lambda process: process.pid)


def other_jobs(listed: str, proc: Path, uid: int, job: str) -> bool:
    """Say whether slurmd runs another job of the account here, from what `scontrol listpids` prints (PID JOBID STEPID ...)."""
    for line in listed.splitlines()[1:]:
        words = line.split()
        if len(words) > 1 and words[0].isdecimal() and words[1] != job:
            with suppress(OSError):
                if (proc / words[0]).stat().st_uid == uid:
                    return True
    return False


def doomed(found: Iterable[Process], *, all_of_them: bool) -> list[Process]:
    """Return the processes that are to end."""
    return [process for process in found if not process.foreign and (process.marked or all_of_them)]


def send(proc: Path, found: Iterable[Process], number: signal.Signals) -> list[Process]:
    """Send a signal to each process that is still the same; return those that were there."""
    there = []
    for process in found:
        with suppress(OSError, IndexError):
            if _read(proc / str(process.pid) / "stat").rpartition(b")")[2].split()[19].decode("ascii", "replace") == process.started:
                os.kill(process.pid, number)
                there.append(process)
    return there


def end(proc: Path, found: list[Process]) -> None:
    """End processes, politely first."""
    left = send(proc, found, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(STEP_S)
        left = [process for process in left if _alive(proc, process)]
    send(proc, left, signal.SIGKILL)


def _alive(proc: Path, process: Process) -> bool:
    try:
        words = _read(proc / str(process.pid) / "stat").rpartition(b")")[2].split()
        return words[19].decode("ascii", "replace") == process.started and words[0] != b"Z"
    except (OSError, IndexError):
        return False


def remove_files(folders: Iterable[str], uid: int) -> int:
    """Remove what an account owns directly in these folders, with all below; return how many. Links are removed, never followed."""
    removed = 0
    for name in folders:
        try:
            top = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            with os.scandir(top) as entries:
                names = [entry.name for entry in entries]
            for entry in names:
                with suppress(OSError):
                    about = os.stat(entry, dir_fd=top, follow_symlinks=False)
                    if about.st_uid != uid:
                        continue
                    if stat.S_ISDIR(about.st_mode):
                        shutil.rmtree(f"{name}/{entry}", ignore_errors=True)  # by descriptors: shutil.rmtree.avoids_symlink_attacks
                    else:
                        os.unlink(entry, dir_fd=top)
                    removed += 1
        finally:
            os.close(top)
    return removed


def listpids() -> str | None:
    """Return what slurmd says of its jobs' processes; None where it does not answer."""
    try:
        done = subprocess.run(["scontrol", "listpids"], capture_output=True, check=False, timeout=ASK_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # With no job left it ends with 1 and says so.
    text = done.stdout.decode("utf-8", "replace")
    return text if done.returncode == 0 or b"No job steps" in done.stdout + done.stderr else None


def account(uid: int) -> str:
    """Return an account's name; its number where it has none here."""
    import pwd  # noqa: PLC0415 - the only use

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def main() -> int:
    """Read the job from the environment that slurmd gives an Epilog, and end what it left."""
    syslog.openlog("primus-epilog")
    job, number = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_UID", "")
    if not (job and number.isdecimal() and int(number) >= FIRST_UID):
        return 0
    uid, settings = int(number), read_settings()
    if account(uid) in settings.spare:
        return 0
    try:
        # First the processes, then the jobs: a job that begins in between is in the list of jobs, or its processes are in neither.
        found = processes(PROC, uid, job)
        listed = listpids()
        last = listed is not None and not settings.login and not other_jobs(listed, PROC, uid, job)
        chosen = doomed(found, all_of_them=last)
        end(PROC, chosen)
        removed = remove_files(SHARED, uid) if last and not any(process.foreign for process in found) else 0
    except OSError as error:
        syslog.syslog(syslog.LOG_WARNING, f"job {job}: {error}")
        return 0
    if chosen or removed:
        syslog.syslog(syslog.LOG_NOTICE, f"job {job} of uid {uid} left {len(chosen)} processes and {removed} files; they were removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
