#!/usr/bin/python3 -I
"""Slurm's Epilog: end what a job left running on this node, and remove what its account left in shared folders of the node.

When the last job of an account on this node has ended, every process of that account is ended, whatever it has made of its environment or
session, and what it owns in /tmp, /var/tmp and /dev/shm is removed. While another job of the account runs here, only processes that carry
the job's own mark are ended. Which jobs run here slurmd says, and whose they are the kernel or the controller, never a process of a user.

Left alone: accounts of the system, accounts that the administrator names (`spare` in the settings), units of the watchers' jobs, and on
login hosts everything without the job's mark. It always ends with 0: a node is not drained because this program could not do its work.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import stat
import subprocess
import sys
import syslog
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PROC = Path("/proc")
SUBUID = Path("/etc/subuid")
SETTINGS = Path("/etc/primus/slurm_epilog.json")
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - what every account may write to
# Accounts of people begin here (login.defs, UID_MIN); what belongs to the system is left alone.
FIRST_UID = 1000
GRACE_S = 2.0
STEP_S = 0.1
# How often what may still start processes is ended.
ROUNDS, PAUSE_S = 5, 0.02
ASK_S = 10.0
REMOVE_S = 60.0
MOST_BYTES = 1 << 20
MOST_THREADS = 10_000
DETACH_NO_LINK = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW: sys/mount.h
# How many folders one call of rm is given.
MOST_WORDS = 100
# Units of root's, in which a job of a watcher runs as its account. A process cannot put itself into one, but it may start a unit of its
# own below user.slice and give it any name.
OTHER_UNITS = ("primus-job-", "primus-watch@")
SYSTEM, USER = "system.slice", "user.slice"


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
    owner: int = 0


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


def owned_uids(uid: int, name: str, path: Path = SUBUID) -> list[range]:
    """Return the numbers that are an account's: its own, and those that it may take in user namespaces (subuid(5): name:first:count)."""
    found = [range(uid, uid + 1)]
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in (name, str(uid)) and first.isdecimal() and count.isdecimal() and int(first) >= FIRST_UID:
            found.append(range(int(first), int(first) + int(count)))
    return found


def is_owned(owner: int, uids: Iterable[range]) -> bool:
    """Say whether a number is one of an account's."""
    return any(owner in numbers for numbers in uids)


def processes(proc: Path, uid: int, job: str, uids: Sequence[range] = ()) -> list[Process]:
    """Return the processes of an account; one that ends meanwhile is passed over. What they say of themselves is data, and bounded."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, IndexError):
            owner = folder.stat().st_uid
            if not is_owned(owner, (range(uid, uid + 1), *uids)):
                continue
            thread = living_thread(folder)
            if thread is None:
                continue
            words = dict(word.split(b"=", 1) for word in _read(thread / "environ").split(b"\0") if b"=" in word)
            groups = _read(thread / "cgroup").decode("utf-8", "replace")
            started = _read(folder / "stat").rpartition(b")")[2].split()[19].decode("ascii", "replace")
            marked = words.get(b"SLURM_JOB_ID") == job.encode() and b"SLURMD_NODENAME" in words
            found.append(Process(int(folder.name), started, marked, in_other_unit(groups), owner))
    return sorted(found, key=lambda process: process.pid)


def living_thread(folder: Path) -> Path | None:
    """Return the folder of the thread that speaks for a process: its first, or another where that has ended; None of a dead process.

    A process lives on after its first thread has ended. /proc then shows it as a zombie without environment and control group.
    """
    threads = [folder]
    with suppress(OSError):
        threads += [folder / "task" / name for name in islice(sorted(os.listdir(folder / "task")), MOST_THREADS)]  # noqa: PTH208
    for thread in threads:
        with suppress(OSError, IndexError):
            if _read(thread / "stat").rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                return thread
    return None


def in_other_unit(groups: str) -> bool:
    """Say whether a process is in a unit of root's for the job of a watcher, from its /proc/PID/cgroup."""
    for line in groups.splitlines():
        # hierarchy:controllers:path, and an account may have colons in the names of groups below its own (cgroups(7)).
        parts = line.split(":", 2)[-1].split("/")
        top = next((place for place, part in enumerate(parts) if part in (SYSTEM, USER)), len(parts))
        if parts[top : top + 1] == [SYSTEM] and any(part.startswith(OTHER_UNITS) for part in parts[top + 1 :]):
            return True
    return False


def other_jobs(listed: str, proc: Path, uid: int, job: str, owners: Callable[[list[str]], set[str] | None]) -> bool:
    """Say whether slurmd runs another job of the account here, from what `scontrol listpids` prints (PID JOBID STEPID ...).

    A job that has no process but root's (an allocation in which nothing runs) shows no owner; `owners` tells those, None where it cannot,
    and then another job of the account counts as running.
    """
    unknown: dict[str, bool] = {}
    for line in listed.splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].isdecimal() or words[1] == job:
            continue
        owner = -1
        with suppress(OSError):
            owner = (proc / words[0]).stat().st_uid if words[0].isdecimal() else -1
        if owner == uid:
            return True
        unknown[words[1]] = unknown.get(words[1], True) and owner < FIRST_UID
    asked = [number for number, is_unknown in unknown.items() if is_unknown]
    told = owners(asked) if asked else set()
    return told is None or str(uid) in told


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


def end_rest(uid: int, look: Callable[[], list[Process]], is_over: Callable[[], bool]) -> set[int]:
    """End what starts processes faster than a list of them can be worked off; return what was seen.

    `kill -1` of the account itself reaches all of its processes in one go of the kernel, those too that no list shows. It would reach the
    units of watchers as well, so where there are such, processes are ended one by one. `is_over` says whether the account still has no job.
    """
    seen: set[int] = set()
    for _ in range(ROUNDS):
        if not is_over():
            break
        found = look()
        left = doomed(found, all_of_them=True)
        seen |= {process.pid for process in left}
        if any(process.foreign for process in found):
            send(PROC, left, signal.SIGKILL)
        else:
            for owner in {uid, *(process.owner for process in left)}:
                kill_all_of(owner)
        time.sleep(PAUSE_S)
    return seen


def kill_all_of(uid: int) -> None:
    """Kill every process of a user number at once (kill(2): pid -1, sent by a process that may signal only these)."""
    if uid < FIRST_UID:
        return
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    # The account can stop the child, which is one of its own processes now.
    deadline = time.monotonic() + GRACE_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(PAUSE_S)


def _alive(proc: Path, process: Process) -> bool:
    try:
        words = _read(proc / str(process.pid) / "stat").rpartition(b")")[2].split()
        return words[19].decode("ascii", "replace") == process.started and living_thread(proc / str(process.pid)) is not None
    except (OSError, IndexError):
        return False


def files_of(folders: Iterable[str], uids: Sequence[range]) -> list[tuple[str, bool]]:
    """Return what an account owns directly in these folders: each path, and whether it is a folder."""
    found = []
    for name in folders:
        with suppress(OSError), os.scandir(name) as entries:
            for entry in entries:
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if is_owned(about.st_uid, uids):
                        found.append((entry.path, stat.S_ISDIR(about.st_mode)))
    return found


def fuse_mounts(uids: Sequence[range], mounts: Path = PROC / "self/mountinfo") -> list[str]:
    """Return where an account has mounted FUSE file systems directly in the shared folders. They outlive its processes.

    Deeper ones are left alone: the account could replace a folder above with a link while root detaches.
    """
    found = []
    with suppress(OSError):
        for line in _read(mounts).decode("utf-8", "surrogateescape").splitlines():
            # ... mount point (5th), options, optional fields, "-", type, source, options of the file system: proc(5)
            words, _, rest = line.partition(" - ")
            kind, _, options = (*rest.split(), "", "", "")[:3]
            owner = next((word.partition("=")[2] for word in options.split(",") if word.startswith("user_id=")), "")
            if kind.startswith("fuse") and owner.isdecimal() and is_owned(int(owner), uids):
                path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words.split()[4])
                if os.path.dirname(path) in SHARED:  # noqa: PTH120
                    found.append(path)
    return found


def detach(paths: Iterable[str]) -> None:
    """Detach mounts in folders of root. No link is followed."""
    libc = ctypes.CDLL(None)
    for path in paths:
        libc.umount2(os.fsencode(path), DETACH_NO_LINK)


def remove_files(found: list[tuple[str, bool]], uids: Sequence[range]) -> int:
    """Remove these entries, folders with all below, where they still are the account's; return how many. No link is followed.

    The folders in which they lie are root's and sticky: only the account and root can put something else in their place. rm opens folders
    one below the other, at any depth, and stays in the file system.
    """
    still = []
    removed = 0
    for path, is_folder in found:
        with suppress(OSError):
            if not is_owned(os.lstat(path).st_uid, uids):
                continue
            if is_folder:
                still.append(path)
            else:
                os.unlink(path)  # noqa: PTH108
                removed += 1
    deadline = time.monotonic() + REMOVE_S
    for first in range(0, len(still), MOST_WORDS):
        words = still[first : first + MOST_WORDS]
        left_s = deadline - time.monotonic()
        if left_s <= 0 or run(["rm", "-rf", "--one-file-system", "--", *words], left_s) is None:
            syslog.syslog(
                syslog.LOG_WARNING, f"what uid {uids[0].start} left was not removed within {REMOVE_S:.0f} s, {words[0]!r} among it"
            )
            break
        removed += len(words)
    return removed


def run(words: list[str], limit_s: float) -> subprocess.CompletedProcess[bytes] | None:
    """Run a program; None where it is not there or does not end in time."""
    try:
        return subprocess.run(words, capture_output=True, check=False, timeout=limit_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None


def listpids() -> str | None:
    """Return what slurmd says of its jobs' processes; None where it does not answer."""
    done = run(["scontrol", "listpids"], ASK_S)
    # With no job left it ends with 1 and says so.
    if done is None or (done.returncode and b"No job steps" not in done.stdout + done.stderr):
        return None
    return done.stdout.decode("utf-8", "replace")


def owners_of(jobs: list[str]) -> set[str] | None:
    """Return the uids of jobs, as the controller knows them; None where it does not answer."""
    done = run(["squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", "--format=%U"], ASK_S)
    # Of jobs that are over for good it says "Invalid job id".
    if done is None or (done.returncode and b"Invalid job id" not in done.stderr):
        return None
    return set(done.stdout.decode("utf-8", "replace").split())


def account(uid: int) -> str:
    """Return an account's name; its number where it has none here."""
    import pwd  # noqa: PLC0415 - the only use

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_last(uid: int, job: str) -> bool:
    """Say whether the account has no other job on this node; not where slurmd does not answer."""
    listed = listpids()
    return listed is not None and not other_jobs(listed, PROC, uid, job, owners_of)


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
        # First what there is, then the jobs: of a job that begins in between, nothing is among what there is.
        numbers = owned_uids(uid, account(uid))
        found, files, mounts = processes(PROC, uid, job, numbers), files_of(SHARED, numbers), fuse_mounts(numbers)
        last = not settings.login and is_last(uid, job)
        chosen = doomed(found, all_of_them=last)
        end(PROC, chosen)
        ended = {process.pid for process in chosen}
        if last:
            # Control groups hold only what slurmd started: a process of an SSH session may have forked when it was ended.
            ended |= end_rest(uid, lambda: processes(PROC, uid, job, numbers), lambda: is_last(uid, job))
        # A job may have begun by now that uses what an earlier one left.
        removed = 0
        if (files or mounts) and last and not any(process.foreign for process in found) and is_last(uid, job):
            detach(mounts)
            removed = remove_files([*files, *((path, True) for path in mounts)], numbers)
    except Exception as error:  # noqa: BLE001 - slurmd drains a node whose epilog fails, and a user's files must not bring that about
        syslog.syslog(syslog.LOG_WARNING, f"job {job}: {type(error).__name__}: {error}")
        return 0
    if ended or removed:
        syslog.syslog(syslog.LOG_NOTICE, f"job {job} of uid {uid} left {len(ended)} processes and {removed} files; they were removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
