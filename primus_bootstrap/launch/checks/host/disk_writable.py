"""Has the kernel made a local file system read-only, as it does after errors of its disk?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import MACHINE, CannotTellError, Check, judged, text_of
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_TYPES = ("ext4", "xfs", "btrfs", "f2fs")
_FIX = "see `journalctl -k` for the disk error behind it; check the file system, then reboot"


def _look(node: Node) -> Iterator[Verdict]:
    meant = _read_only_by_fstab(node)
    mounts: dict[str, str] = {}
    for line in text_of(node.host.path("proc", "1", "mountinfo")).splitlines():
        fields, _, rest = line.partition(" - ")
        try:
            point, (kind, device, options) = fields.split()[4], rest.split(" ", 2)
        except (IndexError, ValueError) as error:
            raise CannotTellError(f"/proc/1/mountinfo cannot be read: {line[:80]!r}") from error
        if kind in _TYPES and point not in meant:
            # The super block says what the kernel did; the mount's own options, what somebody asked for.
            mounts[device] = "read-only" if "ro" in options.split(",") else "writable"
    bad = sorted(device for device, state in mounts.items() if state == "read-only")
    found = ", ".join(f"{device} read-only" for device in bad) or f"{len(mounts)} writable"
    yield judged(
        good=not bad, reason=f"read-only: {', '.join(bad)}", fix=_FIX, expected="writable", found=found, source="proc_pid_mountinfo(5)"
    )


def _read_only_by_fstab(node: Node) -> frozenset[str]:
    lines = (sysfs.read_text(node.host.path("etc", "fstab")) or "").splitlines()
    entries = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return frozenset(entry[1] for entry in entries if len(entry) > 3 and "ro" in entry[3].split(","))


CHECK = Check("disk_writable", "No local file system has been made read-only.", "/proc/1/mountinfo", _look, needs=(MACHINE,))
