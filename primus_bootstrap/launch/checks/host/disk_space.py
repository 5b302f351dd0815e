"""Check the free space and free inodes of the host's file systems."""

from __future__ import annotations

import os

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, Verdicts, pass_or_fail, skipped, unknown

_GIB = 2**30


def _check(node: Node) -> Verdicts:
    space, inodes = limit("free_space_gib"), limit("free_inodes_percent")
    for path in limit("local_paths").value:
        try:
            state = os.statvfs(node.host.path(path.lstrip("/")))
        except FileNotFoundError:
            yield skipped("this folder does not exist", device=path)
            continue
        except OSError as error:
            yield unknown(f"{path} cannot be read: {error.strerror}", device=path, fix=f"see `mount` and `journalctl -k` for {path}")
            continue
        free = state.f_bavail * state.f_frsize / _GIB
        # btrfs and some network file systems have no fixed number of inodes and report 0.
        percent = 100 * state.f_favail / state.f_files if state.f_files else 100.0
        good = free >= space.value and percent >= inodes.value
        expected = f">= {space.value} GiB, >= {inodes.value} % of the inodes"
        found = f"{free:.1f} GiB, {percent:.0f} % of the inodes"
        source = f"{space.source}; {inodes.source}"
        fields = {"device": path, "expected": expected, "found": found, "source": source}
        yield pass_or_fail(good=good, reason=f"{found} free", fix=f"remove files below {path}", **fields)


CHECK = Check("disk_space", "The host's file systems have free space and inodes.", "statvfs", _check, needs=(MACHINE,))
