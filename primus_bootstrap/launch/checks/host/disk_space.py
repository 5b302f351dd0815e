"""Is there room, and are there inodes, where programs write on this machine?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, Check, judged, skipped, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_GIB = 2**30


def _look(node: Node) -> Iterator[Verdict]:
    space, inodes = limit("free_space_gib"), limit("free_inodes_percent")
    for path in limit("local_paths").value:
        try:
            state = os.statvfs(node.host.path(path.lstrip("/")))
        except FileNotFoundError:
            yield skipped("there is no such folder", device=path)
            continue
        except OSError as error:
            yield unknown(f"{path} does not answer: {error.strerror}", device=path, fix=f"see `mount` and `journalctl -k` for {path}")
            continue
        free = state.f_bavail * state.f_frsize / _GIB
        # btrfs and some network file systems have no fixed number of inodes and say 0.
        percent = 100 * state.f_favail / state.f_files if state.f_files else 100.0
        good = free >= space.value and percent >= inodes.value
        expected = f">= {space.value} GiB, >= {inodes.value} % of the inodes"
        found = f"{free:.1f} GiB, {percent:.0f} % of the inodes"
        source = f"{space.source}; {inodes.source}"
        yield judged(
            good=good, reason=f"{found} free", fix=f"free space below {path}", device=path, expected=expected, found=found, source=source
        )


CHECK = Check("disk_space", "There is room on the machine's own file systems.", "statvfs", _look, needs=(MACHINE,))
