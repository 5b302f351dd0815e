#!/usr/bin/python3 -I
"""Slurm's Epilog: kill processes and remove files that a job left on this node.

After the last job of an account on this node, all processes of the account are killed, whatever their environment or session, and its
files in /tmp, /var/tmp and /dev/shm are removed. While another job of the account runs here, only processes with the environment of the
ended job are killed. slurmd lists the jobs of the node, and the kernel or the controller names their owners; data of users is not trusted.

Not touched: system accounts, the accounts in `spare` of the settings, units of watched jobs, and on login hosts all processes outside of
the job. The exit code is always 0, so that a failure of this program does not drain the node.
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
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - every account can write to them
# First uid of ordinary users (login.defs, UID_MIN).
FIRST_UID = 1000
GRACE_S = 2.0
STEP_S = 0.1
# Rounds of killing processes that may start new ones meanwhile.
ROUNDS, PAUSE_S = 5, 0.02
CALL_S = 10.0
REMOVE_S = 60.0
MOST_BYTES = 1 << 20
MOST_THREADS = 10_000
DETACH_NO_LINK = 2 | 8  # MNT_DETACH, UMOUNT_NOFOLLOW: sys/mount.h
# Number of folders in one call of rm.
MOST_WORDS = 100
# System units in which jobs of a watcher run. A user can start units with these names only below user.slice.
OTHER_UNITS = ("primus-job-", "primus-watch@")
SYSTEM, USER = "system.slice", "user.slice"


@dataclass(frozen=True)
class Settings:
    """The settings: accounts that are not touched, and whether this is a login host."""

    spare: tuple[str, ...] = ()
    login: bool = False


@dataclass(frozen=True)
class Process:
    """A process of the account. `started` identifies it if its pid is reused. `marked`: it has the environment of the job."""

    pid: int
    started: str
    marked: bool
    foreign: bool
    owner: int = 0


def read_settings(path: Path = SETTINGS) -> Settings:
    """Return the settings; if they cannot be read, those of a login host."""
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return Settings(tuple(map(str, data["spare"])), bool(data["login"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Settings(login=True)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def owned_uids(uid: int, name: str, path: Path = SUBUID) -> list[range]:
    """Return the uid of an account and its subordinate uids for user namespaces (subuid(5): name:first:count)."""
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
    """Return whether a uid belongs to the account."""
    return any(owner in numbers for numbers in uids)


def processes(proc: Path, uid: int, job: str, uids: Sequence[range] = ()) -> list[Process]:
    """Return the processes of an account. Processes that end meanwhile are skipped. The size of their data is limited."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, IndexError):
            owner = folder.stat().st_uid
            if not is_owned(owner, (range(uid, uid + 1), *uids)):
                continue
            thread = find_live_thread(folder)
            if thread is None:
                continue
            words = dict(word.split(b"=", 1) for word in _read(thread / "environ").split(b"\0") if b"=" in word)
            groups = _read(thread / "cgroup").decode("utf-8", "replace")
            started = _read(folder / "stat").rpartition(b")")[2].split()[19].decode("ascii", "replace")
            marked = words.get(b"SLURM_JOB_ID") == job.encode() and b"SLURMD_NODENAME" in words
            found.append(Process(int(folder.name), started, marked, in_other_unit(groups), owner))
    return sorted(found, key=lambda process: process.pid)


def find_live_thread(folder: Path) -> Path | None:
    """Return the /proc folder of the first live thread of a process; None if the process is dead.

    If the main thread has ended, /proc/PID shows a zombie without environment and cgroup, although other threads are alive.
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
    """Return whether a process is in the system unit of a watched job, from its /proc/PID/cgroup."""
    for line in groups.splitlines():
        # hierarchy:controllers:path; the path may contain colons (cgroups(7)).
        parts = line.split(":", 2)[-1].split("/")
        top = next((position for position, part in enumerate(parts) if part in (SYSTEM, USER)), len(parts))
        if parts[top : top + 1] == [SYSTEM] and any(part.startswith(OTHER_UNITS) for part in parts[top + 1 :]):
            return True
    return False


def has_other_jobs(listed: str, proc: Path, uid: int, job: str, owners: Callable[[list[str]], set[str] | None]) -> bool:
    """Return whether the account has another job here, from the output of `scontrol listpids` (PID JOBID STEPID ...).

    Jobs with processes of root only (empty allocations) show no owner. `owners` returns the owners of such jobs, or None if they are
    unknown; then another job is assumed.
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
    without_owner = [number for number, is_unknown in unknown.items() if is_unknown]
    found = owners(without_owner) if without_owner else set()
    return found is None or str(uid) in found


def processes_to_end(found: Iterable[Process], *, all_of_them: bool) -> list[Process]:
    """Return the processes to kill."""
    return [process for process in found if not process.foreign and (process.marked or all_of_them)]


def send(proc: Path, found: Iterable[Process], number: signal.Signals) -> list[Process]:
    """Send a signal to each process that still exists; return these."""
    existing = []
    for process in found:
        with suppress(OSError, IndexError):
            if _read(proc / str(process.pid) / "stat").rpartition(b")")[2].split()[19].decode("ascii", "replace") == process.started:
                os.kill(process.pid, number)
                existing.append(process)
    return existing


def end(proc: Path, found: list[Process]) -> None:
    """Send SIGTERM, wait, and send SIGKILL to the rest."""
    left = send(proc, found, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(STEP_S)
        left = [process for process in left if _alive(proc, process)]
    send(proc, left, signal.SIGKILL)


def end_remaining(uid: int, look: Callable[[], list[Process]], is_over: Callable[[], bool]) -> set[int]:
    """Kill processes that start new ones faster than a list can be worked off; return the pids.

    `kill -1` as the account reaches all its processes at once, including those that are not in the list. It would also reach units of
    watched jobs, so with such units the processes are killed one by one. `is_over` returns whether the account still has no job.
    """
    seen: set[int] = set()
    for _ in range(ROUNDS):
        if not is_over():
            break
        found = look()
        left = processes_to_end(found, all_of_them=True)
        seen |= {process.pid for process in left}
        if any(process.foreign for process in found):
            send(PROC, left, signal.SIGKILL)
        else:
            for owner in {uid, *(process.owner for process in left)}:
                kill_all_of(owner)
        time.sleep(PAUSE_S)
    return seen


def kill_all_of(uid: int) -> None:
    """Kill all processes of a uid at once (kill(2): pid -1, sent as this uid)."""
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
    # Processes of the account can stop the child, which has the same uid.
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
        return words[19].decode("ascii", "replace") == process.started and find_live_thread(proc / str(process.pid)) is not None
    except (OSError, IndexError):
        return False


def find_files(folders: Iterable[str], uids: Sequence[range]) -> list[tuple[str, bool]]:
    """Return the entries of an account in these folders: each path, and whether it is a folder."""
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
    """Return the mount points of FUSE file systems of an account directly in the shared folders. They remain after its processes.

    Deeper ones are ignored: the account could replace a parent folder by a link while root detaches them.
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
    """Detach mounts in folders of root. Links are not followed."""
    libc = ctypes.CDLL(None)
    for path in paths:
        libc.umount2(os.fsencode(path), DETACH_NO_LINK)


def remove_files(found: list[tuple[str, bool]], uids: Sequence[range]) -> int:
    """Remove these entries with their content if the account still owns them; return their number. Links are not followed.

    The parent folders belong to root and are sticky, so only the account and root can replace the entries. rm opens each folder relative to
    its parent and stays in the file system.
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
                syslog.LOG_WARNING, f"files of uid {uids[0].start} were not removed within {REMOVE_S:.0f} s, such as {words[0]!r}"
            )
            break
        removed += len(words)
    return removed


def run(words: list[str], limit_s: float) -> subprocess.CompletedProcess[bytes] | None:
    """Run a program; None if it is missing or times out."""
    try:
        return subprocess.run(words, capture_output=True, check=False, timeout=limit_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None


def listpids() -> str | None:
    """Return the output of `scontrol listpids`; None if slurmd does not answer."""
    done = run(["scontrol", "listpids"], CALL_S)
    # Without jobs it exits with 1 and this message.
    if done is None or (done.returncode and b"No job steps" not in done.stdout + done.stderr):
        return None
    return done.stdout.decode("utf-8", "replace")


def owners_of(jobs: list[str]) -> set[str] | None:
    """Return the uids of the owners of jobs; None if the controller does not answer."""
    done = run(["squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", "--format=%U"], CALL_S)
    # Jobs that slurmctld has forgotten give "Invalid job id".
    if done is None or (done.returncode and b"Invalid job id" not in done.stderr):
        return None
    return set(done.stdout.decode("utf-8", "replace").split())


def account(uid: int) -> str:
    """Return the name of an account; its uid if it has none on this host."""
    import pwd  # noqa: PLC0415 - the only use

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_last(uid: int, job: str) -> bool:
    """Return whether the account has no other job on this node. False if slurmd does not answer."""
    listed = listpids()
    return listed is not None and not has_other_jobs(listed, PROC, uid, job, owners_of)


def main() -> int:
    """Clean up after the job in the environment of the Epilog."""
    syslog.openlog("primus-epilog")
    job, number = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_UID", "")
    if not (job and number.isdecimal() and int(number) >= FIRST_UID):
        return 0
    uid, settings = int(number), read_settings()
    if account(uid) in settings.spare:
        return 0
    try:
        # List processes and files before the jobs: then they cannot belong to a job that starts in between.
        numbers = owned_uids(uid, account(uid))
        found, files, mounts = processes(PROC, uid, job, numbers), find_files(SHARED, numbers), fuse_mounts(numbers)
        last = not settings.login and is_last(uid, job)
        chosen = processes_to_end(found, all_of_them=last)
        end(PROC, chosen)
        ended = {process.pid for process in chosen}
        if last:
            # Processes of SSH sessions may have forked before they were killed; they are in no cgroup of the job.
            ended |= end_remaining(uid, lambda: processes(PROC, uid, job, numbers), lambda: is_last(uid, job))
        # A job that started meanwhile may use the files, so check again.
        removed = 0
        if (files or mounts) and last and not any(process.foreign for process in found) and is_last(uid, job):
            detach(mounts)
            removed = remove_files([*files, *((path, True) for path in mounts)], numbers)
    except Exception as error:  # noqa: BLE001 - slurmd drains a node whose epilog fails, and files of users must not cause that
        syslog.syslog(syslog.LOG_WARNING, f"job {job}: {type(error).__name__}: {error}")
        return 0
    if ended or removed:
        syslog.syslog(syslog.LOG_NOTICE, f"job {job} of uid {uid} left {len(ended)} processes and {removed} files; they were removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
