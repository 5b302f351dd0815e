#!/usr/bin/python3 -I
"""Slurm's Epilog: end what a job left running on this node.

A process is the job's where its environment says so (SLURM_JOB_ID, and SLURMD_NODENAME, which only slurmd sets: the shell of an
`salloc` on a login host is spared). With control groups there is nothing left to do; without, a program that left its session stays.
It always ends with 0: a node is not drained because this program could not do its work.
"""

from __future__ import annotations

import os
import signal
import sys
import syslog
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
# Accounts of people begin here (login.defs, UID_MIN); what belongs to the system is left alone.
FIRST_UID = 1000
GRACE_S = 2.0
STEP_S = 0.1


def processes(proc: Path, uid: int) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Yield number and environment of each process of an account; one that ends meanwhile is passed over."""
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if folder.stat().st_uid == uid:
                words = (folder / "environ").read_bytes().split(b"\0")
                yield int(folder.name), dict(word.split(b"=", 1) for word in words if b"=" in word)
        except OSError:
            continue


def leftovers(proc: Path, uid: int, job: str) -> list[int]:
    """Return the processes that slurmd started on this node for the job, or that those started."""
    mark = job.encode()
    return sorted(pid for pid, values in processes(proc, uid) if values.get(b"SLURM_JOB_ID") == mark and b"SLURMD_NODENAME" in values)


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end(uid: int, job: str, proc: Path = PROC) -> list[int]:
    """End the job's processes, politely first; return those that there were."""
    found = leftovers(proc, uid, job)
    send(found, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while (left := leftovers(proc, uid, job)) and time.monotonic() < deadline:
        time.sleep(STEP_S)
    send(left, signal.SIGKILL)
    return found


def main() -> int:
    """Read the job from the environment that slurmd gives an Epilog, and end what it left."""
    syslog.openlog("primus-epilog")
    job, uid = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_UID", "")
    if job and uid.isdecimal() and int(uid) >= FIRST_UID:
        try:
            found = end(int(uid), job)
        except OSError as error:
            syslog.syslog(syslog.LOG_WARNING, f"job {job}: {error}")
            return 0
        if found:
            syslog.syslog(syslog.LOG_NOTICE, f"job {job} of uid {uid} left {len(found)} processes; they were ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
