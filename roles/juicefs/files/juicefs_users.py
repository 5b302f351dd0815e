"""Print the processes of users and containers that use a mount through open files, working directories or programs.

    juicefs_users.py MOUNT_POINT

It reads only /proc and compares device numbers, so it also finds a container that has the volume under another path.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROC = Path("/proc")
SHOWN = 5


def device_of(mount_point: str, mountinfo: str) -> str:
    """Return the device number of the topmost mount on a path; empty = nothing is mounted."""
    rows = [line.split() for line in mountinfo.splitlines()]
    found = [row[2] for row in rows if len(row) > 4 and row[4] == mount_point]
    return found[-1] if found else ""


def uses(process: Path, device: str) -> bool:
    """Return whether a process has an open file, its working directory, its root or its program on a device.

    Raises:
        OSError: The process has ended.
    """
    rows = [line.split() for line in (process / "mountinfo").read_text("utf-8", "replace").splitlines()]
    mine = [row for row in rows if len(row) > 4 and row[2] == device]
    if not mine:
        return False
    identities = {row[0] for row in mine}
    for info in (process / "fdinfo").iterdir():
        match = re.search(r"(?m)^mnt_id:\s*(\d+)$", info.read_text("utf-8", "replace"))
        if match and match.group(1) in identities:
            return True
    points = [row[4].rstrip("/") for row in mine]
    for name in ("cwd", "root", "exe"):
        try:
            path = str((process / name).readlink())
        except OSError:
            continue
        if any(path == point or path.startswith(f"{point}/") for point in points):
            return True
    return False


def counts(process: Path, proc: Path) -> bool:
    """Return whether a process belongs to a user or a container. The host's own root processes can reopen their files."""
    return process.stat().st_uid != 0 or (process / "ns" / "pid").readlink() != (proc / "self" / "ns" / "pid").readlink()


def users(mount_point: str, proc: Path = PROC) -> list[str]:
    """Return `name (pid)` of each process of a user or a container that uses a mount."""
    device = device_of(mount_point, (proc / "self" / "mountinfo").read_text("utf-8", "replace"))
    found: list[str] = []
    for process in sorted(proc.iterdir()) if device else []:
        if not process.name.isdecimal():
            continue
        try:
            if counts(process, proc) and uses(process, device):
                found.append(f"{(process / 'comm').read_text('utf-8', 'replace').strip()} ({process.name})")
        except OSError:
            continue
    return found


if __name__ == "__main__":
    print(", ".join(users(sys.argv[1])[:SHOWN]))
