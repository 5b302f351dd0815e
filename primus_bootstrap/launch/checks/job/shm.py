"""Check the size of shared memory."""

from __future__ import annotations

import shutil

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, unknown

_GIB = 2**30


def _check(node: Node) -> Verdicts:
    least = limit("shared_memory_gib")
    fields = {"expected": f">= {least.value}", "unit": "GiB", "source": least.source}
    try:
        size = shutil.disk_usage(node.host.root / "dev/shm").total / _GIB
    except OSError as error:
        return [unknown(str(error), fix="mount /dev/shm", **fields)]
    fix = "for a container, pass --ipc host or --shm-size 16g"
    return [pass_or_fail(good=size >= least.value, reason="shared memory is too small", fix=fix, found=f"{size:.1f}", **fields)]


CHECK = Check("shm", "Shared memory is large enough for data loaders and collectives.", "statvfs of /dev/shm", _check)
