"""What the hosts of a lab share of this machine's kernel, and whether there is enough of it for more of them."""

from __future__ import annotations

from pathlib import Path

# systemd, udev, dbus and journald of one host: 6 at rest (seen with Debian 12), and an estimate of what starting adds.
WATCHERS_PER_NODE = 10
_WATCHER = "anon_inode:inotify"


def shortage(wanted: int, proc: Path = Path("/proc"), *, account: int = 0) -> str:
    """Return what more hosts will lack and how to mend it, in words; empty where there is enough, or where nobody can tell.

    Args:
        wanted: How many hosts are to be started.
        proc: Where the kernel shows processes and settings.
        account: Whose limit counts: all hosts of a lab share root's.
    """
    try:
        limit = int((proc / "sys/fs/inotify/max_user_instances").read_text())
    except (OSError, ValueError):
        return ""
    used = sum(_watchers_of(process, account) for process in proc.glob("[0-9]*"))
    needed = wanted * WATCHERS_PER_NODE
    if used + needed <= limit:
        return ""
    return (
        f"fs.inotify.max_user_instances is {limit}, {used} are in use, and {wanted} hosts take up to {needed}: "
        "systemd may fail to start in some of them\n"
        f"  fix: sysctl -w fs.inotify.max_user_instances={max(1024, used + 2 * needed)}"
    )


def _watchers_of(process: Path, account: int) -> int:
    """Count the inotify instances of a process of that account; those that cannot be looked at do not count."""
    try:
        if process.stat().st_uid != account:
            return 0
        return sum(str(entry.readlink()) == _WATCHER for entry in (process / "fd").iterdir())
    except OSError:
        # It ended meanwhile, or belongs to somebody whom we may not look at.
        return 0
