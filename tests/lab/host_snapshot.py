"""Print the state of a host as JSON: packages, units, files with hashes, accounts, kernel parameters, mounts, listening ports.

Runs on the host with its own Python. Equal snapshots mean that the host is unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

TREES = ("/etc", "/usr/local", "/opt", "/srv", "/home", "/root", "/jfs", "/var/lib", "/var/cache", "/var/backups", "/var/spool")
# What the package manager and the system write for themselves whenever something is installed or removed (docs/reset.md).
OWN_RECORDS = re.compile(
    r"/var/lib/(apt|dpkg|ucf|pam|systemd|dbus|logrotate|polkit-1|private|update-notifier|initramfs-tools|python)(/|$)"
    r"|/var/cache/(apt|debconf|ldconfig|man|fontconfig)(/|$)"
    r"|/var/backups/(dpkg|apt|alternatives)"
    r"|/etc/(ld\.so\.cache|passwd-|group-|shadow-|gshadow-|subuid-|subgid-|\.pwd\.lock|ssl/certs)(/|$)"
    r"|/root/\.(ansible|cache)(/|$)|/home/primus/\.(ansible|cache)(/|$)|/home/primus$|/root$|\.primus-origin-check"
)
# Their text says the order of lines or the day of a change.
BY_LINE = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")


def run(*argv: str) -> list[str]:
    """Return the output lines of a program."""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()


def files() -> dict[str, str]:
    """Return every file with its type, mode, owner and hash."""
    found = {}
    for tree in TREES:
        for folder, inner, names in os.walk(tree):
            inner[:] = [name for name in inner if not os.path.ismount(f"{folder}/{name}")]
            for path in (folder, *(f"{folder}/{name}" for name in names)):
                if not OWN_RECORDS.search(path):
                    found[path] = describe(Path(path))
    return found


def describe(path: Path) -> str:
    """Return the state of one file on one line."""
    info = path.lstat()
    head = f"{stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid}"
    if stat.S_ISLNK(info.st_mode):
        return f"{head} -> {path.readlink()}"
    if not stat.S_ISREG(info.st_mode):
        return head
    content = path.read_bytes()
    if str(path) in BY_LINE:
        content = b"\n".join(sorted(content.splitlines()))
    return f"{head} {hashlib.sha256(content).hexdigest()[:16]}"


def sysctl() -> dict[str, str]:
    """Return the writable kernel parameters."""
    found = {}
    for folder, inner, names in os.walk("/proc/sys"):
        inner[:] = [name for name in inner if name not in ("binfmt_misc", "random", "conf", "neigh")]
        for path in (Path(folder, name) for name in names):
            try:
                if os.access(path, os.W_OK) and path.stat().st_mode & stat.S_IRUSR:
                    found[str(path)] = path.read_text().strip()
            except OSError:
                continue
    return found


def snapshot() -> dict[str, object]:
    """Return the whole state."""
    units = [line.split() for line in run("systemctl", "list-unit-files", "--no-legend", "--plain")]
    running = run("systemctl", "list-units", "--no-legend", "--plain", "--type=service,timer,socket,mount")
    ports = [line.split() for line in run("ss", "-Hltun")]
    return {
        "packages": sorted(run("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status} ${Version}\n")),
        "manual": sorted(run("apt-mark", "showmanual")),
        "unit_files": {row[0]: row[1] for row in units},
        "active": sorted(line.split()[0] for line in running if not re.match(r"(session|user|run-u|run-r|systemd-tmpfiles)", line)),
        "files": files(),
        "sysctl": sysctl(),
        "mounts": sorted(" ".join(line.split()[1:3]) for line in Path("/proc/mounts").read_text().splitlines() if "/run/user" not in line),
        "ports": sorted({f"{row[0]} {row[4]}" for row in ports}),
        "processes": sorted({line.strip() for line in run("ps", "-eo", "comm=")} - TRANSIENT),
    }


# What comes and goes with this look and with a login.
TRANSIENT = {
    "ps",
    "python3",
    "sh",
    "sshd",
    "sshd-session",
    "sudo",
    "(sd-pam)",
    "systemd-userwor",
    "conmon",
    "systemd-hostnam",
    "systemd-timedat",
}

if __name__ == "__main__":
    json.dump(snapshot(), sys.stdout, indent=1, sort_keys=True)
