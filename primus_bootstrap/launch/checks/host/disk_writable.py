"""Check that no local file system is read-only. The kernel makes a file system read-only after disk errors."""

from __future__ import annotations

from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, UnavailableError, Verdicts, pass_or_fail, require_text
from primus_bootstrap.launch.detect import sysfs

_TYPES = ("ext4", "xfs", "btrfs", "f2fs")
_FIX = "see `journalctl -k` for the disk error; check the file system, then reboot"


def _check(node: Node) -> Verdicts:
    configured = _read_only_in_fstab(node)
    mounts: dict[str, str] = {}
    for line in require_text(node.host.path("proc", "1", "mountinfo")).splitlines():
        fields, _, rest = line.partition(" - ")
        try:
            point, (kind, device, options) = fields.split()[4], rest.split(" ", 2)
        except (IndexError, ValueError) as error:
            raise UnavailableError(f"/proc/1/mountinfo has an unexpected line: {line[:80]!r}") from error
        if kind in _TYPES and point not in configured:
            # The super block's options show the state that the kernel set; the mount's options show what was requested.
            mounts[device] = "read-only" if "ro" in options.split(",") else "writable"
    bad = sorted(device for device, state in mounts.items() if state == "read-only")
    found = ", ".join(f"{device} read-only" for device in bad) or f"{len(mounts)} writable"
    yield pass_or_fail(
        good=not bad, reason=f"read-only: {', '.join(bad)}", fix=_FIX, expected="writable", found=found, source="proc_pid_mountinfo(5)"
    )


def _read_only_in_fstab(node: Node) -> frozenset[str]:
    lines = (sysfs.read_text(node.host.path("etc", "fstab")) or "").splitlines()
    entries = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return frozenset(entry[1] for entry in entries if len(entry) > 3 and "ro" in entry[3].split(","))


CHECK = Check("disk_writable", "No local file system is read-only, except as set in fstab.", "/proc/1/mountinfo", _check, needs=(MACHINE,))
