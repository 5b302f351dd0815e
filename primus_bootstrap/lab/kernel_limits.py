"""Check that this machine's inotify limit, which all hosts of a lab share, is high enough for more hosts."""

from __future__ import annotations

from pathlib import Path

# systemd, udev, dbus and journald of one Debian 12 host use 6 when idle; more while they start (estimate).
INSTANCES_PER_NODE = 10
_INOTIFY = "anon_inode:inotify"


def inotify_shortage(count: int, proc: Path = Path("/proc"), *, uid: int = 0) -> str:
    """Return a warning with a fix if the limit is too low for more hosts; empty if it suffices or is unknown.

    Args:
        count: The number of hosts to start.
        proc: The proc file system.
        uid: The account whose limit applies: the hosts of a lab share root's.
    """
    try:
        limit = int((proc / "sys/fs/inotify/max_user_instances").read_text())
    except (OSError, ValueError):
        return ""
    used = sum(_instances(process, uid) for process in proc.glob("[0-9]*"))
    needed = count * INSTANCES_PER_NODE
    if used + needed <= limit:
        return ""
    return (
        f"fs.inotify.max_user_instances is {limit}, {used} are in use, and {count} hosts need up to {needed}: "
        "systemd may fail to start in some of them\n"
        f"  fix: sysctl -w fs.inotify.max_user_instances={max(1024, used + 2 * needed)}"
    )


def _instances(process: Path, uid: int) -> int:
    """Return the number of inotify instances of a process of that account, 0 if the process is not readable."""
    try:
        if process.stat().st_uid != uid:
            return 0
        return sum(str(entry.readlink()) == _INOTIFY for entry in (process / "fd").iterdir())
    except OSError:
        return 0
